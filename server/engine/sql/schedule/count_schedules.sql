-- Returns the number of all schedules, and the number that a principal has created. No lock is taken, so calls that create
-- schedules at the same time may exceed a limit slightly. $1 principal
SELECT (SELECT count(*) FROM howdah.schedule), (SELECT count(*) FROM howdah.schedule_creator WHERE principal = $1::text), now()
