-- Returns schedules that brokers must check when one of their jobs ends, with the ids of these jobs.
SELECT name, job_ids FROM howdah.schedule WHERE watching AND NOT paused
