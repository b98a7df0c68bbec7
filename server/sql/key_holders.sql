-- The jobs that hold these keys now. A holder may finish between our insert and this look: then its
-- row is missing here, and the caller enqueues again.
SELECT k.type_id, k.key, k.job_id
FROM unnest($1::integer[], $2::text[]) AS w(type_id, key)
CROSS JOIN LATERAL (SELECT * FROM howdah.job_key j WHERE j.type_id = w.type_id AND j.key = w.key OFFSET 0) k
