-- By id. There is no index by type: a page looks at no more than 100,000 rows and may come out short;
-- last_id is where the next one begins (null: nothing was left to look at). $1 type $2 (unused) $3 id after $4 at most $5 with payload
WITH looked_at AS MATERIALIZED (
    SELECT id, type_id FROM howdah.waiting WHERE id > $3::bigint AND $2::bigint IS NOT NULL ORDER BY id LIMIT 100000
),
page AS (
    SELECT id FROM looked_at WHERE type_id = $1::integer ORDER BY id LIMIT $4::integer
)
SELECT id, 'waiting'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
       NULL::timestamptz AS leased_at, NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, failures,
       CASE WHEN $5::boolean THEN payload END AS payload, NULL::bytea AS result, 0::bigint AS position, l.last_id
FROM (SELECT max(id) AS last_id FROM looked_at) l
LEFT JOIN howdah.waiting j ON j.id = ANY (ARRAY(SELECT id FROM page)) ORDER BY id
