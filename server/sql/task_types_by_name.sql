-- $1 name[]
SELECT id, name, max_attempts, retry_policy, history, howdah.limits_of(t) AS limits FROM howdah.task_type t WHERE name = ANY ($1::text[])
