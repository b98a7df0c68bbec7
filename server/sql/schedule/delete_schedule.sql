-- $1 name
DELETE FROM howdah.schedule WHERE name = $1::text RETURNING task_type
