-- Stores a sample of the number of jobs of each type, once a minute: the first broker that has counted stores its counts, and
-- the calls of the others do nothing. The rows of an hour and of a day keep the largest sample of each state. The condition on
-- guard does not depend on a row, so Postgres evaluates it first, and reads no table if this broker does not store the sample.
-- $1 names $2 ready $3 leased $4 scheduled $5 waiting $6 dead
WITH guard AS MATERIALIZED (
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
    WHERE (SELECT count(*) FROM guard) > 0
    ON CONFLICT (type_id, minutes, starts) DO UPDATE SET ready = greatest(o.ready, excluded.ready),
        leased = greatest(o.leased, excluded.leased), scheduled = greatest(o.scheduled, excluded.scheduled),
        waiting = greatest(o.waiting, excluded.waiting), dead = greatest(o.dead, excluded.dead)
)
SELECT count(*) AS samples FROM guard
