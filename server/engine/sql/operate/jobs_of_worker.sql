-- Returns ids of the jobs of a task type that a worker of another broker holds, as far as its broker has reported them. It reads
-- the rows of all workers. $1 the id of the worker $2 type
SELECT DISTINCT job_id::bigint AS id
FROM howdah.worker w JOIN howdah.task_type t ON t.id = $2::integer
CROSS JOIN jsonb_array_elements(w.summary -> 'windows') AS held
CROSS JOIN jsonb_array_elements_text(held -> 'oldest') AS job_id
WHERE w.summary ->> 'worker_id' = $1::text AND held ->> 'task_type' = t.name
