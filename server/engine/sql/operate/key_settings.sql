-- Returns limit keys of a type that have their own limit or are paused, with these settings. $1 type_id $2 key after $3 at most
SELECT g.limit_key, g.max_running, CASE WHEN g.paused_until > now() THEN g.paused_until END::text AS paused_until
FROM howdah.limit_state g
WHERE g.type_id = $1::integer AND g.limit_key > $2::text AND (g.max_running IS NOT NULL OR g.paused_until > now())
ORDER BY g.limit_key LIMIT $3::integer
