-- Renews a broker, and with it all of its leases. An expired broker stays expired and must register again, because other
-- brokers may have taken over its leases. $1 id $2 lease_ms
UPDATE howdah.broker SET expires = now() + $2::bigint * interval '1 millisecond'
WHERE id = $1::integer AND expires > now()
RETURNING id
