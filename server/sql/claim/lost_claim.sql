-- A claim whose answer was lost may have been committed: its leases are those that have one of its tokens. A scan, rare; a
-- join, since a comparison with an array would search that for each row. $1 broker $2 token[]
SELECT l.id, l.token FROM unnest($2::bigint[]) AS t(token) JOIN howdah.leased l ON l.token = t.token
WHERE l.broker_id = $1::integer
ORDER BY l.id
