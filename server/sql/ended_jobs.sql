-- Those of these jobs that have finished or are dead. $1 id[]
SELECT id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, finished,
       deadline, headers, failures, payload, result, o.options, howdah.special_view(id, o.options) AS special,
       howdah.original_type(o.options) AS original_task_type
FROM howdah.job CROSS JOIN LATERAL (SELECT coalesce(
    (SELECT d.options FROM howdah.dead d WHERE d.id = job.id),
    (SELECT h.options FROM howdah.history h WHERE h.id = job.id LIMIT 1)) AS options) o
WHERE id = ANY ($1::bigint[]) AND state IN ('dead', 'succeeded', 'cancelled', 'expired', 'discarded')
