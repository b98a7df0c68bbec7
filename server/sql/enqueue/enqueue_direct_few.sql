-- enqueue_direct.sql for one job or a few, in the way of enqueue_few.sql.
-- $1 to $10 as in enqueue_few.sql; $11 broker $12 token[]
WITH stored AS (
    INSERT INTO howdah.leased (id, rank, created, timeout_ms, token, leased_at, deadline, broker_id, type_id, attempt,
                               max_attempts, priority, headers, options, payload)
    SELECT nextval('howdah.job_id'), ($2::bigint[])[i] + (SELECT (extract(epoch FROM now()) * 1000000)::bigint), now(),
           ($5::bigint[])[i], ($12::bigint[])[i], now(), now() + ($5::bigint[])[i] * interval '1 millisecond',
           $11::integer, ($1::integer[])[i], 1, ($4::smallint[])[i], ($3::smallint[])[i], ($6::jsonb[])[i],
           ($7::jsonb[])[i], ($8::bytea[])[i]
    FROM generate_series(1, cardinality($1::integer[])) AS i
    WHERE EXISTS (SELECT FROM howdah.broker WHERE broker.id = $11::integer AND broker.expires > now())
      AND CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
    RETURNING id
),
answer AS MATERIALIZED (SELECT array_agg(id) AS ids FROM stored),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT ($9::integer[])[t], ($10::integer[])[t] FROM generate_series(1, cardinality($9::integer[])) AS t
    WHERE (SELECT ids FROM answer) IS NOT NULL
)
SELECT ids, now() AS now FROM answer
