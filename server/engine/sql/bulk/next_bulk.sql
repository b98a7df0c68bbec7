-- Returns the ms until a bulk operation of this broker, or one without a living owner, is due; null: no operation is running.
-- $1 this broker
SELECT ceil(extract(epoch FROM min(b.next_at) - now()) * 1000)::bigint AS in_ms FROM howdah.bulk b
WHERE b.state = 'running'
  AND (b.owner IS NULL OR b.owner = $1::integer
       OR NOT EXISTS (SELECT FROM howdah.broker o WHERE o.id = b.owner AND o.expires > now()))
