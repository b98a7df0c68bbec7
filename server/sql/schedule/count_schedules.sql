-- The number of schedules. Two that are created at the same time may both be the last one allowed.
SELECT count(*), now() FROM howdah.schedule
