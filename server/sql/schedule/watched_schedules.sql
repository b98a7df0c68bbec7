-- Schedules for which the end of their jobs has consequences.
SELECT name, job_ids FROM howdah.schedule WHERE watching AND NOT paused
