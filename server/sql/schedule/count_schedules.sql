-- The number of schedules, and of those that a principal has created. Two that are created at the same time may both be the last
-- one allowed. $1 principal
SELECT count(*), count(*) FILTER (WHERE created_by = $1::text), now() FROM howdah.schedule
