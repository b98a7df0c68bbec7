-- Retires a broker that stops. Its workers have the grace time ($2, ms) to resume at another broker with the leases that they
-- still hold. A broker without leases is deleted at once. Another broker continues its bulk operations. $1 id
WITH kept AS (
    UPDATE howdah.broker SET expires = least(expires, now() + $2::bigint * interval '1 millisecond')
    WHERE id = $1::integer AND EXISTS (SELECT FROM howdah.leased WHERE broker_id = $1)
    RETURNING id
),
freed AS (
    UPDATE howdah.bulk SET owner = NULL WHERE state = 'running' AND owner = $1
)
DELETE FROM howdah.broker WHERE id = $1::integer AND NOT EXISTS (SELECT FROM howdah.leased WHERE broker_id = $1)
