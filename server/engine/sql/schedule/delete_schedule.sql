-- Deletes a schedule. $1 name $2 the task type of its jobs, for which the caller has the right
DELETE FROM howdah.schedule WHERE name = $1::text AND task_type = $2::text RETURNING task_type
