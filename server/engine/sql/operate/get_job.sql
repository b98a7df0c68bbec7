-- Returns one job. The options are not in the view howdah.job, so they are read from the table that holds the job. $1 id
SELECT id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, finished,
       deadline, headers, failures, payload, result, o.options, howdah.coordination_of(id, o.options) AS coordination,
       howdah.original_type(o.options) AS original_task_type, o.options -> 'tags' AS tags, broker
FROM howdah.job_of(ARRAY[$1::bigint]) CROSS JOIN LATERAL (SELECT (
    SELECT o.options FROM (
        SELECT options FROM howdah.ready WHERE id = $1::bigint
        UNION ALL SELECT options FROM howdah.leased WHERE id = $1::bigint
        UNION ALL SELECT options FROM howdah.scheduled WHERE id = $1::bigint
        UNION ALL SELECT options FROM howdah.waiting WHERE id = $1::bigint
        UNION ALL SELECT options FROM howdah.dead WHERE id = $1::bigint
        UNION ALL SELECT options FROM howdah.history_of(ARRAY[$1::bigint])) o LIMIT 1) AS options) o
