-- Returns jobs that a search or a list by attempts found, whatever their state now, in the order of the ids, as many as fit
-- into an answer; without the jobs that do not meet the conditions. $1 id[] $2 bytes at most (but at least one job) $3 with payload $4 conditions (null: none)
SELECT * FROM (
    SELECT j.id, t.name AS task_type, j.state, j.priority, j.attempt, j.max_attempts, j.key, j.created, j.run_at, j.leased_at, j.finished,
           j.deadline, j.headers, j.failures, CASE WHEN $3 THEN howdah.payload_of(j.id, j.payload, j.options) END AS payload, NULL::bytea AS result,
           (SELECT b.name FROM howdah.broker b WHERE b.id = j.broker_id) AS broker,
           howdah.original_type(j.options) AS original_task_type, j.options -> 'tags' AS tags, count(*) OVER () AS found, row_number() OVER in_order AS ordinal,
           sum(500 + coalesce(octet_length(j.headers::text), 0) + coalesce(octet_length((j.options -> 'tags')::text), 0) + coalesce(octet_length(j.failures::text), 0)
               + CASE WHEN $3 THEN coalesce(howdah.payload_size(j.payload, j.options), 0) ELSE 0 END) OVER in_order AS bytes
    FROM (
        SELECT id, type_id, 'ready'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at, NULL::timestamptz AS leased_at,
               NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, NULL::integer AS broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.ready WHERE id = ANY ($1::bigint[])
        UNION ALL
        SELECT id, type_id, 'leased' AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at, leased_at AS leased_at,
               NULL::timestamptz AS finished, deadline AS deadline, headers, broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.leased WHERE id = ANY ($1::bigint[])
        UNION ALL
        SELECT id, type_id, 'scheduled' AS state, priority, attempt, max_attempts, key, created, run_at AS run_at, leased_at AS leased_at,
               NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, NULL::integer AS broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
        UNION ALL
        SELECT id, type_id, 'waiting' AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at, NULL::timestamptz AS leased_at,
               NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, NULL::integer AS broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.waiting WHERE id = ANY ($1::bigint[])
        UNION ALL
        SELECT id, type_id, 'dead' AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at, leased_at AS leased_at,
               died AS finished, NULL::timestamptz AS deadline, headers, NULL::integer AS broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.dead WHERE id = ANY ($1::bigint[])
        UNION ALL
        SELECT id, type_id, outcome::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at, leased_at AS leased_at,
               finished AS finished, NULL::timestamptz AS deadline, headers, NULL::integer AS broker_id, options,
               CASE WHEN $3::boolean THEN failures WHEN failures IS NOT NULL THEN jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $3::boolean THEN payload END AS payload
        FROM howdah.history_of($1::bigint[])
    ) j JOIN howdah.task_type t ON t.id = j.type_id
    WHERE howdah.meets($4::jsonb, j.created, j.attempt, j.options)
    WINDOW in_order AS (ORDER BY array_position($1, j.id))
) measured
WHERE bytes < $2::bigint OR ordinal = 1
ORDER BY ordinal
