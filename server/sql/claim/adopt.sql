-- A session came back with leases: they are this broker's now. Possession of the token is the right to
-- it. Rows with an other_id tell of brokers that had some of them. A broker that registers again proves nothing: it only
-- remembers, and its workers may have gone on elsewhere. So it takes only what is under its own numbers ($4). One that has
-- expired takes nothing, and is told so: what it does not get is not lost. What tells the trace of a job is for the span that goes on here.
-- $1 id[] (sorted, unique) $2 token[] $3 broker $4 only of these brokers (null: of any)
WITH live AS MATERIALIZED (SELECT broker.id FROM howdah.broker WHERE broker.id = $3::integer AND broker.expires > now()),
others AS (
    SELECT broker_id, array_agg(id) AS ids FROM howdah.leased
    WHERE id = ANY ($1::bigint[])
          AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND broker_id <> $3::integer
    GROUP BY broker_id
),
adopted AS (
    UPDATE howdah.leased SET broker_id = $3::integer
    WHERE id = ANY ($1::bigint[])
          AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND broker_id IS NOT NULL
      AND ($4::integer[] IS NULL OR broker_id = ANY ($4))
      AND EXISTS (SELECT FROM live)
    RETURNING id, token, type_id, (howdah.payload_size(payload, options) + coalesce(octet_length(headers::text), 0))::bigint AS bytes,
              attempt, options ->> 'traceparent' AS traceparent, options ->> 'tracestate' AS tracestate
)
SELECT id, token, type_id, bytes, attempt, traceparent, tracestate, (extract(epoch FROM now()) * 1000000)::bigint AS now_us,
       NULL::integer AS other_id, NULL::bigint[] AS other_ids, false AS expired FROM adopted
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, broker_id, ids, false FROM others
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true WHERE NOT EXISTS (SELECT FROM live)
