-- Returns limit keys of a type for which jobs wait, which are paused, or which have their own limit. Waiting jobs are counted up
-- to 1,000. $1 type_id $2 key after $3 at most
SELECT g.limit_key,
       (SELECT count(*) FROM (SELECT FROM howdah.waiting w WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key
                              LIMIT 1000) n) AS waiting,
       (SELECT count(*) FROM howdah.ready r WHERE r.type_id = g.type_id AND r.options ->> 'limit_key' = g.limit_key
          AND r.options -> 'limit_key' IS NOT NULL)
       + (SELECT count(*) FROM howdah.leased l WHERE l.type_id = g.type_id AND l.options ->> 'limit_key' = g.limit_key
          AND l.options -> 'limit_key' IS NOT NULL) AS running,
       CASE WHEN isfinite(g.paused_until) THEN g.paused_until END AS paused_until,
       coalesce(g.paused_until > now(), false) AS paused, g.max_running
FROM howdah.limit_state g
WHERE g.type_id = $1::integer AND g.limit_key > $2::text
  AND (g.paused_until > now() OR g.max_running IS NOT NULL
       OR EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key))
ORDER BY g.limit_key LIMIT $3::integer
