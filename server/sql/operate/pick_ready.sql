-- Returns ids of ready jobs of a type, in the order of rank; the caller then processes them by id. $1 type $2 rank after $3 id
-- after $4 at most
SELECT id, rank, true AS picked FROM howdah.ready
WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
ORDER BY type_id, rank, id LIMIT $4::integer
