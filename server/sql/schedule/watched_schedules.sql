-- Returns schedules at which brokers must look when one of their jobs ends, with these jobs.
SELECT name, job_ids FROM howdah.schedule WHERE watching AND NOT paused
