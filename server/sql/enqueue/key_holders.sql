-- The jobs that hold these keys now. A holder may finish between the insert and this statement. Then its row is missing, and
-- the caller enqueues again. It also does so if a key was held for a time that is over (free_held_keys.sql). $1 type_id[] $2 key[]
SELECT k.type_id, k.key, k.job_id
FROM unnest($1::integer[], $2::text[]) AS w(type_id, key)
CROSS JOIN LATERAL (
    SELECT * FROM howdah.job_key j
    WHERE j.type_id = w.type_id AND j.key = w.key AND (j.held_until IS NULL OR j.held_until > now() OR j.next_id IS NOT NULL)
    OFFSET 0) k
