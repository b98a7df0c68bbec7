-- Deletes keys that were held for a time that is over. Locked ones are left for later.
DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM howdah.job_key WHERE held_until <= now() AND next_id IS NULL FOR UPDATE SKIP LOCKED))
