-- Renews a broker, and with it all of its leases, and says which settings it goes by. An expired broker stays expired and must
-- register again, because other brokers may have taken over its leases. $1 id $2 lease_ms $3 version of the settings
UPDATE howdah.broker SET expires = now() + $2::bigint * interval '1 millisecond', settings_version = greatest(settings_version, $3::bigint)
WHERE id = $1::integer AND expires > now()
RETURNING id
