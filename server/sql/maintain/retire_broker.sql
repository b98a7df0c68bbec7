-- A broker that stops leaves its workers the grace time ($2, ms) to come back elsewhere with the leases
-- they still hold; without leases its row goes at once. $1 id
WITH kept AS (
    UPDATE howdah.broker SET expires = least(expires, now() + $2::bigint * interval '1 millisecond')
    WHERE id = $1::integer AND EXISTS (SELECT FROM howdah.leased WHERE broker_id = $1)
    RETURNING id
)
DELETE FROM howdah.broker WHERE id = $1::integer AND NOT EXISTS (SELECT FROM howdah.leased WHERE broker_id = $1)
