-- $1 name[]
SELECT id, name, max_attempts, retry_policy, history FROM howdah.task_type WHERE name = ANY ($1::text[])
