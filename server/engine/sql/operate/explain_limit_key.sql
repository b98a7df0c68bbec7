-- Returns why a job waits for its limit key: the state of the key, the jobs that hold slots, and how many waiting jobs go
-- first: with a larger limit, or with the same limit and a lower rank. All counts are bounded. In strict order, jobs that have
-- started before go first. $1 type $2 key $3 rank $4 id $5 true: the job has started before $6 at most $7 limit_max of the job
SELECT coalesce(g.paused_until > now(), false) AS paused,
       CASE WHEN t.key_gap_from_end THEN 1 ELSE coalesce($7::integer, t.key_max_running) END AS max_running,
       CASE WHEN isfinite(g.paused_until) THEN g.paused_until END AS paused_until,
       CASE WHEN t.key_min_gap_ms IS NOT NULL THEN least(g.gap_from, now() + interval '1 second') + t.key_min_gap_ms * interval '1 millisecond' END AS gap_over,
       CASE WHEN t.key_rate_per_s IS NOT NULL THEN
           -- next_token is null if the rate allows a start now.
           nullif(now() + greatest(0, 1 - (g.tokens + howdah.elapsed_s(g.refilled) * t.key_rate_per_s))
                          / t.key_rate_per_s * interval '1 second', now()) END AS next_token,
       ARRAY(SELECT l.id FROM howdah.leased l
             WHERE l.type_id = t.id AND l.options ->> 'limit_key' = $2 COLLATE "C" AND l.options -> 'limit_key' IS NOT NULL LIMIT greatest(1000, t.key_max_running, $7)) AS leased,
       ARRAY(SELECT r.id FROM howdah.ready r
             WHERE r.type_id = t.id AND r.options ->> 'limit_key' = $2 COLLATE "C" AND r.options -> 'limit_key' IS NOT NULL LIMIT greatest(1000, t.key_max_running, $7)) AS ready,
       CASE WHEN t.key_strict THEN
           ARRAY(SELECT s.id FROM howdah.scheduled s
                 WHERE s.type_id = t.id AND s.options ->> 'limit_key' = $2 COLLATE "C" AND s.options -> 'limit_key' IS NOT NULL
                       AND s.attempt > 0 LIMIT greatest(1000, t.key_max_running, $7)) ELSE '{}' END AS scheduled,
       (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL AND w.options -> 'limit_max' > to_jsonb(m.most)
                  AND (t.key_strict IS NOT TRUE OR NOT $5::boolean AND w.attempt = 0)
            LIMIT $6::bigint) n)
       + (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL AND w.options -> 'limit_max' = to_jsonb(m.most)
                  AND (w.rank, w.id) < ($3::bigint, $4::bigint) AND (t.key_strict IS NOT TRUE OR NOT $5 AND w.attempt = 0)
            LIMIT $6) n)
       + (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL AND w.options -> 'limit_max' IS NULL
                  AND m.of_key >= m.most AND (w.rank, w.id) < (CASE WHEN m.of_key > m.most THEN 9223372036854775807 ELSE $3 END, $4)
                  AND (t.key_strict IS NOT TRUE OR NOT $5 AND w.attempt = 0)
            LIMIT $6) n)
       + (SELECT count(*) FROM (
            SELECT FROM howdah.waiting w
            WHERE t.key_strict AND w.type_id = t.id AND w.limit_key = $2 AND w.limit_key IS NOT NULL AND w.attempt > 0
                  AND (NOT $5 OR (w.rank, w.id) < ($3, $4))
            LIMIT $6) n) AS before
FROM howdah.limits_of_key($1::integer, $2::text) t LEFT JOIN howdah.limit_state g ON g.type_id = t.id AND g.limit_key = $2::text
CROSS JOIN LATERAL (SELECT coalesce($7, t.key_max_running, 2147483647) AS most, coalesce(t.key_max_running, 2147483647) AS of_key) m
