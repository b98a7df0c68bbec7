-- Whether ranks of a type are still to follow its step, and how long until a look finds all that was under way
-- when it changed. $1 type $2 ms that something may be under way
SELECT (extract(epoch FROM step_changed - now()) * 1000)::bigint + $2::bigint AS final_in_ms
FROM howdah.task_type WHERE id = $1::integer AND step_changed IS NOT NULL
