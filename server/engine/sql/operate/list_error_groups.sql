-- Returns groups of failed jobs, the largest first. Dead jobs are counted by an index-only scan. Of jobs that wait for a retry
-- it reads at most 1,000, among the 10,000 scheduled jobs that run soonest, because computing the group of each takes about 15
-- µs.
-- $1 type (null: all) $2 groups at most
WITH dead AS (
    SELECT type_id, error_group, count(*) AS dead, 0::bigint AS backing_off, min(died) AS first_time, max(died) AS last_time,
           max(id) AS example_id
    FROM howdah.dead WHERE $1::integer IS NULL OR type_id = $1
    GROUP BY type_id, error_group
),
looked AS MATERIALIZED (
    SELECT id, type_id, failures -> -1 AS failure FROM howdah.scheduled ORDER BY run_at, id LIMIT 10000
),
seen AS MATERIALIZED (
    SELECT * FROM looked WHERE failure IS NOT NULL AND ($1::integer IS NULL OR type_id = $1) LIMIT 1000
),
backing_off AS (
    SELECT type_id, howdah.failure_group(failure) AS error_group, 0::bigint AS dead, count(*) AS backing_off,
           min((failure ->> 'failed')::timestamptz) AS first_time, max((failure ->> 'failed')::timestamptz) AS last_time,
           max(id) AS example_id
    FROM seen
    GROUP BY 1, 2
),
grouped AS (
    SELECT type_id, error_group, sum(dead)::bigint AS dead, sum(backing_off)::bigint AS backing_off,
           min(first_time) AS first_time, max(last_time) AS last_time, max(example_id) AS example_id
    FROM (SELECT * FROM dead UNION ALL SELECT * FROM backing_off) u
    GROUP BY 1, 2
    ORDER BY sum(dead) + sum(backing_off) DESC, max(example_id) DESC LIMIT $2::integer
)
SELECT t.name AS task_type, g.error_group, g.dead, g.backing_off, g.first_time, g.last_time, g.example_id,
       left(coalesce((SELECT d.failures FROM howdah.dead d WHERE d.id = g.example_id),
                     (SELECT s.failures FROM howdah.scheduled s WHERE s.id = g.example_id)) -> -1 ->> 'error', 2000) AS example_error,
       (SELECT count(*) >= 1000 FROM seen) OR (SELECT count(*) >= 10000 FROM looked) AS partial
FROM grouped g JOIN howdah.task_type t ON t.id = g.type_id
ORDER BY g.dead + g.backing_off DESC, g.example_id DESC
