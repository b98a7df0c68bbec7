-- Stores how many jobs types have, once a minute: the broker that has counted first does it, the others find it done. Of an hour and
-- of a day, the largest sample of each state stays. What is older than statistics are is deleted.
-- $1 names $2 ready $3 leased $4 scheduled $5 waiting $6 dead
WITH turn AS MATERIALIZED (
    UPDATE howdah.backlog_sample SET sampled = date_trunc('minute', now())
    WHERE is_only IN (SELECT is_only FROM howdah.backlog_sample WHERE sampled < date_trunc('minute', now()) FOR UPDATE SKIP LOCKED)
    RETURNING sampled
),
stored AS (
    INSERT INTO howdah.backlog AS o (type_id, minutes, starts, ready, leased, scheduled, waiting, dead)
    SELECT t.id, p.minutes, p.starts, j.ready, j.leased, j.scheduled, j.waiting, j.dead
    FROM turn
    CROSS JOIN unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS j(name, ready, leased, scheduled, waiting, dead)
    JOIN howdah.task_type t ON t.name = j.name
    CROSS JOIN LATERAL (VALUES (1::smallint, turn.sampled), (60::smallint, date_trunc('hour', turn.sampled, 'UTC')),
                               (1440::smallint, date_trunc('day', turn.sampled, 'UTC'))) AS p(minutes, starts)
    ON CONFLICT (type_id, minutes, starts) DO UPDATE SET ready = greatest(o.ready, excluded.ready),
        leased = greatest(o.leased, excluded.leased), scheduled = greatest(o.scheduled, excluded.scheduled),
        waiting = greatest(o.waiting, excluded.waiting), dead = greatest(o.dead, excluded.dead)
),
deleted AS (
    DELETE FROM howdah.backlog b USING turn, (VALUES (1::smallint, interval '2 hours 1 minute'), (60::smallint, interval '90 days'),
                                                     (1440::smallint, interval '91 days')) AS k(minutes, kept)
    WHERE b.minutes = k.minutes AND b.starts < now() - k.kept
)
SELECT count(*) AS samples FROM turn
