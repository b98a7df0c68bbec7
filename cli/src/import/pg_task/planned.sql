-- Selects and locks the next planned tasks of a table of pg_task, so that pg_task does not run them meanwhile.
-- Like pg_task, it skips rows locked by others. Reads rows as JSON, because the columns differ between versions
-- of pg_task. {table} is replaced by the table name, {lock} by the locking clause, or nothing in a dry run.
-- $1: select ids greater than this; $2: maximum number of rows
SELECT t."id"::bigint AS id,
       -- Inputs above 4 MiB become null, which bounds memory. Brokers accept larger payloads only if configured to.
       CASE WHEN octet_length(r ->> 'input') <= 4194304 THEN r ->> 'input' END AS input,
       CASE WHEN isfinite((r ->> 'plan')::timestamptz)
            -- Timestamps in the last representable years do not fit into a bigint.
            THEN least(extract(epoch FROM (r ->> 'plan')::timestamptz) * 1000000, 9e18)::bigint END AS plan_us,
       -- An infinite period means that the task stays active forever.
       CASE WHEN isfinite((r ->> 'plan')::timestamptz) AND (r ->> 'active')::interval < interval '3650 days'
            THEN (extract(epoch FROM (r ->> 'active')::interval) * 1000)::bigint END AS active_ms,
       -- An out-of-range value in one row must not fail the whole query: avoid timestamp overflow and infinite numbers.
       coalesce(isfinite((r ->> 'active')::interval)
                AND extract(epoch FROM (r ->> 'active')::interval) > 9e12, false) AS is_too_long,
       coalesce(CASE WHEN (r ->> 'plan')::timestamptz >= now() OR NOT isfinite((r ->> 'plan')::timestamptz) THEN false
                     WHEN (r ->> 'active')::interval < interval '3650 days'
                     THEN (r ->> 'plan')::timestamptz + (r ->> 'active')::interval < now()
                     ELSE extract(epoch FROM now()) - extract(epoch FROM (r ->> 'plan')::timestamptz)
                          > extract(epoch FROM (r ->> 'active')::interval) END, false) AS is_late,
       coalesce(least(extract(epoch FROM (r ->> 'repeat')::interval) * 1000, 9e18)::bigint, 0) AS repeat_ms,
       coalesce(extract(year FROM (r ->> 'repeat')::interval) <> 0
                OR extract(month FROM (r ->> 'repeat')::interval) <> 0, false) AS repeats_by_months,
       coalesce(least(extract(epoch FROM (r ->> 'timeout')::interval) * 1000, 9e18)::bigint, 0) AS timeout_ms,
       coalesce((r ->> 'max')::bigint, 0) AS max,
       coalesce((r ->> 'drift')::boolean, false) AS drift,
       coalesce((r ->> 'header')::boolean, true) AS header,
       coalesce((r ->> 'string')::boolean, true) AS string,
       r ->> 'delimiter' AS delimiter,
       r ->> 'escape' AS escape,
       r ->> 'quote' AS quote,
       r ->> 'null' AS "null",
       left(r ->> 'group', 10000) AS "group",
       left(r ->> 'remote', 10000) AS remote,
       left(r ->> 'data', 10000) AS data,
       (r ->> 'parent')::bigint AS parent
FROM {table} AS t, LATERAL to_jsonb(t) AS r
WHERE t."state"::text = 'PLAN' AND t."id" > $1
ORDER BY t."id"
LIMIT $2 {lock}
