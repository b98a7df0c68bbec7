-- All of a broker's leases in one row. An expired one stays expired: its leases were given away, and it
-- must register anew. $1 id $2 lease_ms
UPDATE howdah.broker SET expires = now() + $2::bigint * interval '1 millisecond'
WHERE id = $1::integer AND expires > now()
RETURNING id
