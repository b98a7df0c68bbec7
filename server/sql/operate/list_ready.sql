-- Returns a page of ready jobs in the order in which they will run. $1 type $2 rank after $3 id after $4 at most $5 with
-- payload $6 bytes at most (and the first job)
SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY position, id) AS bytes, row_number() OVER (ORDER BY position, id) AS ordinal,
           count(*) OVER () AS page_rows
    FROM (
        SELECT id, 'ready'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
               NULL::timestamptz AS leased_at, NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array(failures -> -1) END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, NULL::bytea AS result,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, rank AS position, id AS last_id,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE failures -> -1 END)::text), 0) AS size
        FROM howdah.ready
        WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
        ORDER BY type_id, rank, id LIMIT $4::integer
    ) page_of_jobs
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
