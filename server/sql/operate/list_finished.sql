-- Returns a page of finished jobs, the newest id first. There is no index by type, so a page reads at most 20,000 rows, some 30
-- ms, and may have fewer jobs than requested. last_id is where the next page starts (null: nothing is left). It is computed
-- only if the page is not full, because a full page ends the scan early; it reads the index alone.
-- $1 type $2 outcome (null: any) $3 id before (0: the newest) $4 at most $5 with payload $6 bytes at most (and the first job)
WITH page AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, type_id, outcome FROM howdah.history WHERE id < CASE WHEN $3::bigint = 0 THEN 9223372036854775807 ELSE $3 END
        ORDER BY id DESC LIMIT 20000
    ) seen
    WHERE type_id = $1::integer AND ($2::text IS NULL OR outcome = $2::howdah.job_state)
    LIMIT $4::integer
)
SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY id DESC) AS bytes, row_number() OVER (ORDER BY id DESC) AS ordinal,
           count(*) OVER () AS page_rows
    FROM (
        SELECT id, outcome::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
               leased_at AS leased_at, finished AS finished, NULL::timestamptz AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array(failures -> -1) END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, CASE WHEN $5::boolean THEN result END AS result,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, 0::bigint AS position, l.last_id,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0) + coalesce(CASE WHEN $5::boolean THEN octet_length(result) END, 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE failures -> -1 END)::text), 0) AS size
        FROM (SELECT CASE WHEN (SELECT count(*) FROM page) < $4 THEN (
                  SELECT id FROM howdah.history WHERE id < CASE WHEN $3::bigint = 0 THEN 9223372036854775807 ELSE $3 END
                  ORDER BY id DESC OFFSET 19999 LIMIT 1) END AS last_id) l
        LEFT JOIN howdah.history j ON j.id = ANY (ARRAY(SELECT id FROM page))
    ) page_of_jobs
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
