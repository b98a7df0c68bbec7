-- Returns a page of types with their numbers of jobs by state. It reads the tables to count, so it is for operators and for the
-- slow metrics loop, not for the hot path. $1 name after $2 at most $3 only this name (null: all)
WITH page AS MATERIALIZED (
    SELECT id, name,
           max_attempts,
           retry_policy,
           history,
           priority_step_us,
           timeout_ms,
           paused,
           max_payload_bytes,
           max_backlog,
           history_days,
           dead_days,
           howdah.limits_of(t) AS limits,
           (SELECT f.name FROM howdah.task_type f WHERE f.id = t.fallback) AS fallback
    FROM howdah.task_type t
    WHERE name > $1::text AND ($3::text IS NULL OR name = $3)
    ORDER BY name LIMIT $2::integer
),
counted AS (
    SELECT type_id, 1 AS state, count(*) AS jobs FROM howdah.ready
        WHERE type_id IN (SELECT id FROM page) GROUP BY type_id
    UNION ALL SELECT type_id, 2, count(*) FROM howdah.leased
        WHERE type_id IN (SELECT id FROM page) GROUP BY type_id
    UNION ALL SELECT type_id, 3, count(*) FROM howdah.scheduled
        WHERE type_id IN (SELECT id FROM page) GROUP BY type_id
    UNION ALL SELECT type_id, 4, count(*) FROM howdah.waiting
        WHERE type_id IN (SELECT id FROM page) GROUP BY type_id
    UNION ALL SELECT type_id, 5, count(*) FROM howdah.dead
        WHERE type_id IN (SELECT id FROM page) GROUP BY type_id
),
summed AS (
    SELECT type_id,
           sum(jobs) FILTER (WHERE state = 1)::bigint AS ready, sum(jobs) FILTER (WHERE state = 2)::bigint AS leased,
           sum(jobs) FILTER (WHERE state = 3)::bigint AS scheduled, sum(jobs) FILTER (WHERE state = 4)::bigint AS waiting,
           sum(jobs) FILTER (WHERE state = 5)::bigint AS dead
    FROM counted GROUP BY type_id
)
SELECT p.*,
       coalesce(s.ready, 0) AS ready, coalesce(s.leased, 0) AS leased, coalesce(s.scheduled, 0) AS scheduled,
       coalesce(s.waiting, 0) AS waiting, coalesce(s.dead, 0) AS dead,
       -- The job with the lowest rank has waited longest in its priority; rank - priority * step is the time at which it became
       -- ready.
       (SELECT greatest(0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
                           - (r.rank - r.priority * howdah.step_of(r.options)) / 1000)
        FROM howdah.ready r WHERE r.type_id = p.id ORDER BY r.rank, r.id LIMIT 1) AS oldest_ready_ms,
       (SELECT u.last FROM howdah.pull u WHERE u.type_id = p.id) AS last_pull,
       b.since AS braked_since, b.failures AS braked_failures, b.next_at AS braked_next,
       CASE WHEN s.scheduled > 0 THEN
           (SELECT greatest(0, extract(epoch FROM d.run_at - clock_timestamp()) * 1000)::bigint
            FROM howdah.scheduled d WHERE d.type_id = p.id ORDER BY d.run_at, d.id LIMIT 1) END AS next_due_ms
FROM page p LEFT JOIN summed s ON s.type_id = p.id
LEFT JOIN howdah.brake b ON b.type_id = p.id AND b.since IS NOT NULL
ORDER BY p.name
