-- Returns why a job waits for its limit key: the state of the key, the jobs that hold slots, and how many waiting jobs go
-- first. All counts are bounded. In strict order, jobs that have started before go first. $1 type $2 key $3 rank $4 id $5 true:
-- the job has started before $6 at most
SELECT coalesce(g.paused_until > now(), false) AS paused, t.key_max_running AS max_running,
       CASE WHEN isfinite(g.paused_until) THEN g.paused_until END AS paused_until,
       CASE WHEN t.key_min_gap_ms IS NOT NULL THEN least(g.gap_from, now() + interval '1 second') + t.key_min_gap_ms * interval '1 millisecond' END AS gap_over,
       CASE WHEN t.key_rate_per_s IS NOT NULL THEN
           -- next_token is null if the rate allows a start now.
           nullif(now() + greatest(0, 1 - (g.tokens + howdah.elapsed_s(g.refilled) * t.key_rate_per_s))
                          / t.key_rate_per_s * interval '1 second', now()) END AS next_token,
       ARRAY(SELECT l.id FROM howdah.leased l
             WHERE l.type_id = t.id AND l.options ->> 'limit_key' = $2 COLLATE "C" AND l.options -> 'limit_key' IS NOT NULL LIMIT greatest(1000, t.key_max_running)) AS leased,
       ARRAY(SELECT r.id FROM howdah.ready r
             WHERE r.type_id = t.id AND r.options ->> 'limit_key' = $2 COLLATE "C" AND r.options -> 'limit_key' IS NOT NULL LIMIT greatest(1000, t.key_max_running)) AS ready,
       CASE WHEN t.key_strict THEN
           ARRAY(SELECT s.id FROM howdah.scheduled s
                 WHERE s.type_id = t.id AND s.options ->> 'limit_key' = $2 COLLATE "C" AND s.options -> 'limit_key' IS NOT NULL
                       AND s.attempt > 0 LIMIT greatest(1000, t.key_max_running)) ELSE '{}' END AS scheduled,
       (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL
                  AND (w.rank, w.id) < ($3::bigint, $4::bigint) AND (t.key_strict IS NOT TRUE OR NOT $5::boolean)
            LIMIT $6::bigint) n)
       + (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE t.key_strict AND w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL AND w.attempt > 0
                  AND CASE WHEN $5 THEN (w.rank, w.id) < ($3, $4) ELSE (w.rank, w.id) > ($3, $4) END
            LIMIT $6) n) AS before
FROM howdah.limits_of_key($1::integer, $2::text) t LEFT JOIN howdah.limit_state g ON g.type_id = t.id AND g.limit_key = $2::text
