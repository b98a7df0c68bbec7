-- Renews the row of a broker, on which all of its leases depend, and stores the version of the settings that the broker uses.
-- An expired row stays expired, and its broker must register again, because other brokers may have released its leases. Also
-- corrects rows of other brokers that expire later than a renewal now would set, because the clock has gone back since they
-- were written. Otherwise the leases of such a broker would be rescued too late if it is gone. $1 id $2 lease_ms $3 version of
-- the settings
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
