-- Transfers to this broker the leases that a worker lists when it reconnects. The token of a lease gives the right to take
-- it. Rows with an other_id name brokers that had some of the leases. A broker that has registered under a new id also calls
-- it, for the leases that it remembers. Of these it takes only leases that still belong to its former ids ($4), because the
-- workers of the others have resumed at another broker. If the row of this broker has expired, nothing is transferred, and
-- the only result row has `expired` set. traceparent and tracestate are for the job's span, which continues here.
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
