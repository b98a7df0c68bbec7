-- $1 id
SELECT id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, finished,
       deadline, headers, failures, payload, result,
       (SELECT howdah.original_type(o.options) FROM (
            SELECT options FROM howdah.ready WHERE id = $1 UNION ALL SELECT options FROM howdah.leased WHERE id = $1
            UNION ALL SELECT options FROM howdah.scheduled WHERE id = $1
            UNION ALL SELECT options FROM howdah.waiting WHERE id = $1
            UNION ALL SELECT options FROM howdah.dead WHERE id = $1
            UNION ALL SELECT options FROM howdah.history WHERE id = $1) o LIMIT 1) AS original_task_type
FROM howdah.job WHERE id = $1::bigint
