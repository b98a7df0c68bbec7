-- Returns a page of dead jobs by id. $1 type $2 (unused) $3 id after $4 at most $5 with payload $6 bytes at most (and the first
-- job)
SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY id) AS bytes, row_number() OVER (ORDER BY id) AS ordinal,
           count(*) OVER () AS page_rows
    FROM (
        SELECT id, 'dead'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
               leased_at AS leased_at, died AS finished, NULL::timestamptz AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array(failures -> -1) END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, NULL::bytea AS result,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, 0::bigint AS position, id AS last_id,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE failures -> -1 END)::text), 0) AS size
        FROM howdah.dead
        WHERE type_id = $1::integer AND id > $3::bigint AND $2::bigint IS NOT NULL
        ORDER BY type_id, id LIMIT $4::integer
    ) page_of_jobs
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
