-- Deletes the given keys if the time until which they were held has passed. Locked keys are skipped. $1 type_id[] $2 key[]
DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
    SELECT k.ctid FROM unnest($1::integer[], $2::text[]) AS w(type_id, key)
    CROSS JOIN LATERAL (
        SELECT j.ctid FROM howdah.job_key j
        WHERE j.type_id = w.type_id AND j.key = w.key AND j.held_until <= now() AND j.next_id IS NULL
        FOR UPDATE SKIP LOCKED) k))
