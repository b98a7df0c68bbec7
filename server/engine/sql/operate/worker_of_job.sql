-- Returns the worker of another broker that holds a job, if its broker has reported that. It reads the rows of one broker.
-- $1 id
SELECT w.summary ->> 'worker_id' AS worker_id, coalesce((w.summary ->> 'is_connected')::boolean, false) AS is_connected
FROM howdah.leased l JOIN howdah.worker w ON w.broker_id = l.broker_id
WHERE l.id = $1::bigint AND $1 = ANY (w.job_ids) LIMIT 1
