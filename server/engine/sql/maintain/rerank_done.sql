-- Records that all ranks of a type have its current step, unless the step was changed less than $2 ms ago: then it has changed
-- during the last pass, and another pass is needed. $1 type $2 ms
UPDATE howdah.task_type SET step_changed = NULL
WHERE id = $1::integer AND step_changed <= now() - $2::bigint * interval '1 millisecond'
