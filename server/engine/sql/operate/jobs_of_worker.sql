-- Returns ids of the jobs that a worker of another broker holds, as far as its broker has reported them. It reads the rows of all
-- workers. $1 the id of the worker
SELECT DISTINCT unnest(job_ids) AS id FROM howdah.worker WHERE summary ->> 'worker_id' = $1::text
