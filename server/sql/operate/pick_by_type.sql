-- Returns ids of jobs of a type, by an index; the caller then processes them by id. $1 type $2 and $3 position $4 at most
SELECT id, {rank} AS rank, true AS picked FROM howdah.{table}
WHERE {after}
ORDER BY {scan} LIMIT $4::integer
