-- Renews a broker, and with it all of its leases, and says which settings it goes by. An expired broker stays expired and must
-- register again, because other brokers may have taken over its leases. A broker that would expire later than its own renewal
-- now could make it has renewed before the clock went back, or is gone: it gets a new lease from now on, so that its jobs are
-- rescued in time. $1 id $2 lease_ms $3 version of the settings
WITH ahead AS (
    UPDATE howdah.broker SET expires = now() + lease_ms * interval '1 millisecond'
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM howdah.broker
        WHERE id <> $1 AND expires > now() + (lease_ms + 1000) * interval '1 millisecond' FOR UPDATE SKIP LOCKED))
)
UPDATE howdah.broker SET expires = now() + $2::bigint * interval '1 millisecond', lease_ms = $2,
                         settings_version = greatest(settings_version, $3::bigint)
WHERE id = $1::integer AND expires > now()
RETURNING id
