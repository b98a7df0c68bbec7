-- $1 id
SELECT id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, finished,
       deadline, headers, failures, payload, result
FROM howdah.job WHERE id = $1::bigint
