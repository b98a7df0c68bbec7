-- The number of schedules, and of those that a principal has created. Two that are created at the same time may both be the last
-- one allowed. $1 principal
SELECT (SELECT count(*) FROM howdah.schedule), (SELECT count(*) FROM howdah.schedule_creator WHERE principal = $1::text), now()
