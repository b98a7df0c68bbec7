-- Keys that were held for a time, which is over.
DELETE FROM howdah.job_key WHERE held_until <= now() AND next_id IS NULL
