-- The next planned tasks of a table of pg_task, locked, so that pg_task does not take them meanwhile; it skips locked
-- rows, and so do we. Read as JSON: its versions do not have the same columns. {table} is put in; {lock} too, but for
-- a dry run.
-- $1: after this id; $2: at most so many
SELECT t."id"::bigint AS id,
       -- Memory is bounded: no broker takes more without being told to.
       CASE WHEN octet_length(r ->> 'input') <= 4194304 THEN r ->> 'input' END AS input,
       CASE WHEN isfinite((r ->> 'plan')::timestamptz)
            -- The last years that a timestamp knows do not fit into a bigint.
            THEN least(extract(epoch FROM (r ->> 'plan')::timestamptz) * 1000000, 9e18)::bigint END AS plan_us,
       -- With an infinite period it is active for ever.
       CASE WHEN isfinite((r ->> 'plan')::timestamptz) AND (r ->> 'active')::interval < interval '3650 days'
            THEN (extract(epoch FROM (r ->> 'active')::interval) * 1000)::bigint END AS active_ms,
       -- One row beyond all bounds must not fail the others: no sum that no timestamp can hold, no infinite number.
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
