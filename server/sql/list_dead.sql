-- By id. $1 type $2 (unused) $3 id after $4 at most $5 with payload
SELECT id, 'dead'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
       leased_at AS leased_at, died AS finished, NULL::timestamptz AS deadline, headers, failures,
       CASE WHEN $5::boolean THEN payload END AS payload, NULL::bytea AS result, 0::bigint AS position, id AS last_id
FROM howdah.dead
WHERE type_id = $1::integer AND id > $3::bigint AND $2::bigint IS NOT NULL
ORDER BY type_id, id LIMIT $4::integer
