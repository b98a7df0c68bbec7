-- Deletes keys that were held for a time that is over.
DELETE FROM howdah.job_key WHERE held_until <= now() AND next_id IS NULL
