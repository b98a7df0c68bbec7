-- Returns a page of jobs of a type, by an index. The position of a ready job is its rank. $1 type $2 and $3 position
-- $4 at most $5 with payload $6 bytes at most (but at least one job)
SELECT * FROM (
    SELECT *, sum(size) OVER in_order AS bytes, row_number() OVER in_order AS ordinal, count(*) OVER () AS page_rows
    FROM (
        SELECT id, {rank} AS rank, {state} AS state, priority, attempt, max_attempts, key, created, {run_at} AS run_at,
               {leased_at} AS leased_at, {finished} AS finished, {deadline} AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array((failures -> -1) - 'details') END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, {result} AS result,
               (SELECT t.name FROM howdah.task_type t WHERE t.id = type_id) AS task_type,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, {broker} AS broker, id AS last_id,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE (failures -> -1) - 'details' END)::text), 0) AS size
        FROM howdah.{table}
        WHERE {after}
        ORDER BY {scan} LIMIT $4::integer
    ) page_of_jobs
    WINDOW in_order AS (ORDER BY {order})
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
