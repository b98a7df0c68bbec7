-- $1 name[]
SELECT id, name, max_attempts, retry_policy, history,
       (SELECT f.name FROM howdah.task_type f WHERE f.id = t.fallback) AS fallback
FROM howdah.task_type t WHERE name = ANY ($1::text[])
