-- Returns a page of leased jobs by id. There is no index by type, so a page reads at most 20,000 rows and may have fewer jobs
-- than requested. last_id is where the next page starts (null: nothing is left). It is computed only if the page is not full,
-- because a full page ends the scan early.
-- $1 type $2 (unused) $3 id after $4 at most $5 with payload $6 bytes at most (and the first job)
WITH page AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, type_id FROM howdah.leased WHERE id > $3::bigint AND $2::bigint IS NOT NULL ORDER BY id LIMIT 20000
    ) seen
    WHERE type_id = $1::integer LIMIT $4::integer
)
SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY id) AS bytes, row_number() OVER (ORDER BY id) AS ordinal,
           count(*) OVER () AS page_rows
    FROM (
        SELECT id, 'leased'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
               leased_at AS leased_at, NULL::timestamptz AS finished, deadline AS deadline, headers,
               CASE WHEN $5::boolean OR failures IS NULL THEN failures ELSE jsonb_build_array(failures -> -1) END AS failures,
               CASE WHEN $5::boolean THEN howdah.payload_of(id, payload, options) END AS payload, NULL::bytea AS result,
               howdah.original_type(options) AS original_task_type, options -> 'tags' AS tags, 0::bigint AS position, l.last_id,
               (SELECT b.name FROM howdah.broker b WHERE b.id = j.broker_id) AS broker,
               coalesce(CASE WHEN $5::boolean THEN howdah.payload_size(payload, options) END, 0)
                   + coalesce(octet_length(headers::text), 0) + coalesce(octet_length((options -> 'tags')::text), 0) + 500
                   + coalesce(octet_length((CASE WHEN $5::boolean THEN failures ELSE failures -> -1 END)::text), 0) AS size
        FROM (SELECT CASE WHEN (SELECT count(*) FROM page) < $4 THEN (
                  SELECT id FROM howdah.leased WHERE id > $3 ORDER BY id OFFSET 19999 LIMIT 1) END AS last_id) l
        LEFT JOIN howdah.leased j ON j.id = ANY (ARRAY(SELECT id FROM page))
    ) page_of_jobs
) measured
WHERE bytes < $6::bigint OR ordinal = 1
ORDER BY ordinal
