-- Those of these jobs that have finished or are dead. $1 id[]
SELECT id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, finished,
       deadline, headers, failures, payload, result
FROM howdah.job WHERE id = ANY ($1::bigint[]) AND state IN ('dead', 'succeeded', 'cancelled', 'expired', 'discarded')
