-- Locks the oldest dead jobs of a type that died more than this many days ago, and returns their ids. Jobs that another
-- transaction has locked are skipped. $1 type $2 days $3 at most
SELECT id FROM howdah.dead
WHERE type_id = $1::integer AND died < now() - $2::integer * interval '1 day'
ORDER BY type_id, died LIMIT $3::integer FOR UPDATE SKIP LOCKED
