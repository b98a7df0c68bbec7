-- Enqueues jobs directly as leased. The broker calls it if it knows of no jobs that rank before them and its workers have
-- capacity. Such a job costs one insert and one delete in its job tables, and one commit between the producer and the worker.
-- Differences from enqueue.sql:
-- * If the broker's row has expired, no id is allotted and nothing is stored.
-- * The caller draws the fencing tokens ($18), one random number per job, as for a claim. No token is derived from another.
-- $1 to $16 as in enqueue.sql $17 broker $18 token[]
WITH allotted AS MATERIALIZED (
    SELECT array_agg(n.id) AS ids
    FROM (SELECT nextval('howdah.job_id') AS id FROM generate_series(1, array_length($1::integer[], 1))
          WHERE EXISTS (SELECT FROM howdah.broker WHERE broker.id = $17::integer AND broker.expires > now())
            AND CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
          OFFSET 0) n
),
clock AS MATERIALIZED (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now_us),
stored AS (
    INSERT INTO howdah.leased (id, rank, created, timeout_ms, token, leased_at, deadline, broker_id, type_id, attempt,
                               max_attempts, priority, headers, options, payload)
    SELECT j.id, j.rank_base + (SELECT now_us FROM clock), now(), j.timeout_ms, j.token,
           now(), now() + j.timeout_ms * interval '1 millisecond', $17::integer, j.type_id, 1,
           j.max_attempts, j.priority, j.headers, j.options, j.payload
    FROM unnest((SELECT ids FROM allotted), $18::bigint[], $1::integer[], $2::bigint[],
                $3::smallint[], $4::smallint[], $5::bigint[], $6::jsonb[], $7::jsonb[], $8::bytea[])
        AS j(id, token, type_id, rank_base, priority, max_attempts, timeout_ms, headers, options, payload)
    WHERE j.id IS NOT NULL
),
out_of_line AS (
    INSERT INTO howdah.payload (id, created, data)
    SELECT (SELECT ids FROM allotted)[p.ordinal], now(), p.data
    FROM unnest($13::integer[], $14::bytea[]) AS p(ordinal, data)
    WHERE (SELECT ids FROM allotted) IS NOT NULL
),
repeatable AS (
    INSERT INTO howdah.request (key, body_hash, ids)
    SELECT r.key, r.body_hash, (SELECT ids FROM allotted)[r.first:r.last]
    FROM unnest($9::text[], $10::bytea[], $11::integer[], $12::integer[]) AS r(key, body_hash, first, last)
    WHERE (SELECT ids FROM allotted) IS NOT NULL
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT t.type_id, t.jobs FROM unnest($15::integer[], $16::integer[]) AS t(type_id, jobs)
    WHERE (SELECT ids FROM allotted) IS NOT NULL
)
SELECT ids, now() AS now FROM allotted
