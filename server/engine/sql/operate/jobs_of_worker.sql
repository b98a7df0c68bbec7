-- Returns ids of the jobs of a task type that a worker of another broker holds, as far as its broker has reported them. It reads
-- the rows of all workers. $1 the id of the worker $2 type; null for jobs of all types
SELECT DISTINCT job_id::bigint AS id
FROM howdah.worker w
CROSS JOIN jsonb_array_elements(w.summary -> 'windows') AS held
CROSS JOIN jsonb_array_elements_text(held -> 'oldest') AS job_id
WHERE w.summary ->> 'worker_id' = $1::text
    AND ($2::integer IS NULL OR held ->> 'task_type' = (SELECT name FROM howdah.task_type WHERE id = $2::integer))
