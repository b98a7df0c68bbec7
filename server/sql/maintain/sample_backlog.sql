-- Stores how many jobs types have, once a minute: the broker that has counted first does it, the others find it done. Of an hour and
-- of a day, the largest sample of each state stays. What is older than statistics are is deleted.
-- Each part asks first whether it is this broker's turn, as a condition that names no table: then Postgres looks at it before it
-- reads one. The age of each period is a constant of its own, so that the planner sees how few rows are older and goes by the index.
-- $1 names $2 ready $3 leased $4 scheduled $5 waiting $6 dead
WITH turn AS MATERIALIZED (
    UPDATE howdah.backlog_sample SET sampled = date_trunc('minute', now())
    WHERE is_only IN (SELECT is_only FROM howdah.backlog_sample WHERE sampled < date_trunc('minute', now()) FOR UPDATE SKIP LOCKED)
    RETURNING sampled
),
stored AS (
    INSERT INTO howdah.backlog AS o (type_id, minutes, starts, ready, leased, scheduled, waiting, dead)
    SELECT t.id, p.minutes, p.starts, j.ready, j.leased, j.scheduled, j.waiting, j.dead
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS j(name, ready, leased, scheduled, waiting, dead)
    JOIN howdah.task_type t ON t.name = j.name
    CROSS JOIN (VALUES (1::smallint, date_trunc('minute', now())), (60::smallint, date_trunc('hour', now(), 'UTC')),
                       (1440::smallint, date_trunc('day', now(), 'UTC'))) AS p(minutes, starts)
    WHERE (SELECT count(*) FROM turn) > 0
    ON CONFLICT (type_id, minutes, starts) DO UPDATE SET ready = greatest(o.ready, excluded.ready),
        leased = greatest(o.leased, excluded.leased), scheduled = greatest(o.scheduled, excluded.scheduled),
        waiting = greatest(o.waiting, excluded.waiting), dead = greatest(o.dead, excluded.dead)
),
deleted_minutes AS (
    DELETE FROM howdah.backlog WHERE minutes = 1 AND starts < now() - interval '2 hours 1 minute' AND (SELECT count(*) FROM turn) > 0
),
deleted_hours AS (
    DELETE FROM howdah.backlog WHERE minutes = 60 AND starts < now() - interval '90 days' AND (SELECT count(*) FROM turn) > 0
),
deleted_days AS (
    DELETE FROM howdah.backlog WHERE minutes = 1440 AND starts < now() - interval '91 days' AND (SELECT count(*) FROM turn) > 0
)
SELECT count(*) AS samples FROM turn
