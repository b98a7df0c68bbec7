-- A session came back with leases: they are this broker's now. Possession of the token is the right to
-- it. $1 id[] (sorted, unique) $2 token[] $3 broker
UPDATE howdah.leased SET broker_id = $3::integer
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
  AND broker_id IS NOT NULL
  AND EXISTS (SELECT FROM howdah.broker WHERE broker.id = $3 AND broker.expires > now())
RETURNING id, token, type_id, (howdah.payload_size(payload, options) + coalesce(octet_length(headers::text), 0))::bigint AS bytes
