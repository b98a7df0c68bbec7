-- Returns a page of jobs. A page reads at most 20,000 rows, which takes some 30 ms. If many of them have another type or do not
-- meet the conditions, it has fewer jobs than requested. last_rank and last_id are where the next page starts (null: nothing is
-- left). They are computed only if the page is not full, because a full page ends the scan early.
-- $1 type (null: all) $2 and $3 position (history: $2 outcome; an error group: $2 the group) $4 at most $5 with payload $6 bytes
-- at most (but at least one job) $7 conditions (null: none) $8 jobs of a worker (null: any)
WITH page AS MATERIALIZED (
    SELECT id FROM (
        SELECT * FROM howdah.{table} WHERE {after} ORDER BY {scan} LIMIT 20000
    ) seen
    WHERE {of_type} AND howdah.meets($7::jsonb, created, attempt, options) AND ($8::bigint[] IS NULL OR id = ANY ($8))
    LIMIT $4::integer
)
SELECT * FROM (
    SELECT *, sum(size) OVER in_order AS bytes, row_number() OVER in_order AS ordinal, count(*) OVER () AS page_rows
    FROM (
        SELECT id, {rank} AS rank, {state} AS state, priority, attempt, max_attempts, key, created, {run_at} AS run_at,
               {leased_at} AS leased_at, {finished} AS finished, {deadline} AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, {result} AS result,
               (SELECT t.name FROM howdah.task_type t WHERE t.id = type_id) AS task_type,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, {broker} AS broker, l.last_rank, l.last_id,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0)
                   + coalesce(octet_length({result}), 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE (failures -> -1) - 'details' END)::text), 0) AS size
        FROM (SELECT) one
        LEFT JOIN LATERAL (
            SELECT {rank} AS last_rank, id AS last_id FROM howdah.{table}
            WHERE (SELECT count(*) FROM page) < $4 AND {after} ORDER BY {scan} OFFSET 19999 LIMIT 1
        ) l ON true
        LEFT JOIN howdah.{table} j ON j.id = ANY (ARRAY(SELECT id FROM page))
    ) page_of_jobs
    WINDOW in_order AS (ORDER BY {order})
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
