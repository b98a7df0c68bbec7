-- Returns the leases of a claim that may have committed although its answer was lost: the leases with one of the claim's
-- tokens. It scans all leases of the broker, but is rarely called. It uses a join, because = ANY would search the array for
-- each row.
-- $1 broker $2 token[]
SELECT l.id, l.token FROM unnest($2::bigint[]) AS t(token) JOIN howdah.leased l ON l.token = t.token
WHERE l.broker_id = $1::integer
ORDER BY l.id
