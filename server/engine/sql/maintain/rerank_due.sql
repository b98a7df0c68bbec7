-- Returns whether ranks of a type must still be changed to its step, and how long until all statements that ran at the change
-- have ended. $1 type $2 ms that a statement may run
SELECT (extract(epoch FROM step_changed - now()) * 1000)::bigint + $2::bigint AS final_in_ms
FROM howdah.task_type WHERE id = $1::integer AND step_changed IS NOT NULL
