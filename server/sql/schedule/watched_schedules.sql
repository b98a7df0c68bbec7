-- Schedules for which something happens when their jobs have finished.
SELECT name, job_ids FROM howdah.schedule WHERE watching AND NOT paused
