-- Records that all ranks of a type have its step, unless the step was changed again. $1 type $2 ms since the change at least
UPDATE howdah.task_type SET step_changed = NULL
WHERE id = $1::integer AND step_changed <= now() - $2::bigint * interval '1 millisecond'
