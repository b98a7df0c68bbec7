-- enqueue_direct.sql for one job, simplified like enqueue_one.sql. Returns no row if the broker's row has expired.
-- $1 to $10 as in enqueue_one.sql $11 broker $12 token
WITH stored AS (
    INSERT INTO howdah.leased (id, rank, created, timeout_ms, token, leased_at, deadline, broker_id, type_id, attempt,
                               max_attempts, priority, headers, options, payload)
    SELECT nextval('howdah.job_id'), $2::bigint + (extract(epoch FROM now()) * 1000000)::bigint, now(), $5::bigint,
           $12::bigint, now(), now() + $5::bigint * interval '1 millisecond', broker.id, $1::integer, 1, $4::smallint,
           $3::smallint, $6::jsonb, $7::jsonb, $8::bytea
    FROM howdah.broker
    WHERE broker.id = $11::integer AND broker.expires > now()
      AND CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
    RETURNING id
),
counted AS (INSERT INTO howdah.statistics_change (type_id, enqueued) SELECT $1::integer, 1 FROM stored)
SELECT id, now() AS now, CASE WHEN $9::text IS NOT NULL THEN howdah.note_request($9::text, $10::bytea, id) END
FROM stored
