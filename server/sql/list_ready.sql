-- In the order in which they will run. $1 type $2 rank after $3 id after $4 at most $5 with payload
SELECT id, 'ready'::text AS state, priority, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
       NULL::timestamptz AS leased_at, NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, failures,
       CASE WHEN $5::boolean THEN payload END AS payload, NULL::bytea AS result, rank AS position, id AS last_id
FROM howdah.ready
WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
ORDER BY type_id, rank, id LIMIT $4::integer
