-- Selects and locks the next planned tasks of a table of pg_task, so that pg_task does not run them meanwhile.
-- Like pg_task, it skips rows locked by others. Reads rows as JSON, because the columns differ between versions
-- of pg_task: plan was dt until August 2021, input was request until February 2021, group was queue and the state
-- PLAN was QUEUE in 2019. {table} is replaced by the table name, {lock} by the locking clause, or nothing in a dry run.
-- $1: select ids greater than this; $2: maximum number of rows
SELECT t."id"::bigint AS id,
       -- Inputs above 4 MiB become null, which bounds memory. Brokers accept larger payloads only if configured to.
       CASE WHEN octet_length(task.input) <= 4194304 THEN task.input END AS input,
       CASE WHEN isfinite(task.plan)
            -- Timestamps in the last representable years do not fit into a bigint.
            THEN least(extract(epoch FROM task.plan) * 1000000, 9e18)::bigint END AS plan_us,
       -- An infinite period means that the task stays active forever.
       CASE WHEN isfinite(task.plan) AND (r ->> 'active')::interval < interval '3650 days'
            THEN (extract(epoch FROM (r ->> 'active')::interval) * 1000)::bigint END AS active_ms,
       -- An out-of-range value in one row must not fail the whole query: avoid timestamp overflow and infinite numbers.
       coalesce(isfinite((r ->> 'active')::interval)
                AND extract(epoch FROM (r ->> 'active')::interval) > 9e12, false) AS is_too_long,
       coalesce(CASE WHEN task.plan >= now() OR NOT isfinite(task.plan) THEN false
                     WHEN (r ->> 'active')::interval < interval '3650 days'
                     THEN task.plan + (r ->> 'active')::interval < now()
                     ELSE extract(epoch FROM now()) - extract(epoch FROM task.plan)
                          > extract(epoch FROM (r ->> 'active')::interval) END, false) AS is_late,
       least(coalesce(extract(epoch FROM (r ->> 'repeat')::interval) * 1000, 0), 9e18)::bigint AS repeat_ms,
       coalesce(extract(year FROM (r ->> 'repeat')::interval) <> 0
                OR extract(month FROM (r ->> 'repeat')::interval) <> 0, false) AS repeats_by_months,
       least(coalesce(extract(epoch FROM (r ->> 'timeout')::interval) * 1000, 0), 9e18)::bigint AS timeout_ms,
       -- In tables with the column dt, max is the number of tasks of a group that may run at once, and null means no
       -- limit. In later tables max is one less.
       CASE WHEN r ? 'dt' THEN greatest(coalesce((r ->> 'max')::bigint, 2147483647), 1) - 1
            ELSE coalesce((r ->> 'max')::bigint, 0) END AS max,
       coalesce((r ->> 'drift')::boolean, false) AS drift,
       coalesce((r ->> 'header')::boolean, true) AS header,
       coalesce((r ->> 'string')::boolean, true) AS string,
       r ->> 'delimiter' AS delimiter,
       r ->> 'escape' AS escape,
       r ->> 'quote' AS quote,
       r ->> 'null' AS "null",
       left(coalesce(r ->> 'group', r ->> 'queue'), 10000) AS "group",
       left(r ->> 'remote', 10000) AS remote,
       left(r ->> 'data', 10000) AS data,
       (r ->> 'parent')::bigint AS parent
FROM {table} AS t, LATERAL to_jsonb(t) AS r,
     LATERAL (SELECT coalesce(r ->> 'input', r ->> 'request') AS input,
                     coalesce(r ->> 'plan', r ->> 'dt')::timestamptz AS plan) AS task
WHERE t."state"::text IN ('PLAN', 'QUEUE') AND t."id" > $1
ORDER BY t."id"
LIMIT $2 {lock}
