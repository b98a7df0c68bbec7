-- A claim whose answer was lost may have been committed: its leases are those whose token is the hash
-- under that claim's key. A scan, rare. $1 broker $2 token key
SELECT id, token FROM howdah.leased
WHERE broker_id = $1::integer AND token = hashint8extended(id, $2::bigint) & 9223372036854775807
ORDER BY id
