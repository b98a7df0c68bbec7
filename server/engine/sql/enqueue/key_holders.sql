-- Returns the jobs that hold these keys now. If a holder has ended since the insert, its row is missing, and the caller
-- enqueues again. The caller also enqueues again if a key was held until a time that has passed, after free_held_keys.sql.
-- $1 type_id[] $2 key[]
SELECT k.type_id, k.key, k.job_id
FROM unnest($1::integer[], $2::text[]) AS w(type_id, key)
CROSS JOIN LATERAL (
    SELECT * FROM howdah.job_key j
    WHERE j.type_id = w.type_id AND j.key = w.key AND (j.held_until IS NULL OR j.held_until > now() OR j.next_id IS NOT NULL)
    OFFSET 0) k
