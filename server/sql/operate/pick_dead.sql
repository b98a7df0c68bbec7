-- Returns ids of dead jobs of a type, by id. $1 type $2 (unused) $3 id after $4 at most
SELECT id, 0::bigint AS rank, true AS picked FROM howdah.dead
WHERE type_id = $1::integer AND id > $3::bigint AND $2::bigint IS NOT NULL
ORDER BY type_id, id LIMIT $4::integer
