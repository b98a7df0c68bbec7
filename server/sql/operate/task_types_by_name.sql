-- $1 name[]
SELECT id, name FROM howdah.task_type WHERE name = ANY ($1::text[])
