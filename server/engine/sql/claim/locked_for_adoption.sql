-- Returns the leases, among those that a reconnected worker lists, that another transaction has locked. These leases still
-- exist, so the broker does not report them as lost, and adopts them when the lock ends. $1 id[] (sorted, unique) $2 token[] $3
-- only of these brokers (null: of any)
SELECT id, token, type_id, broker_id,
       (howdah.payload_size(payload, options) + coalesce(octet_length(headers::text), 0))::bigint AS bytes
FROM howdah.leased
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
  AND broker_id IS NOT NULL
  AND ($3::integer[] IS NULL OR broker_id = ANY ($3))
