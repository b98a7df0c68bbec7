-- $1 name[]
SELECT id, name, max_attempts, retry_policy FROM howdah.task_type WHERE name = ANY ($1::text[])
