-- Returns ids of ready jobs of a type for a bulk operation, in the order of rank. A call reads at most 20,000 rows. If it
-- selects fewer jobs than requested, it also returns the last row that it read, with picked false: the next call continues
-- after that row.
-- $1 type $2 rank after $3 id after $4 at most $5 last id $6 another priority than this (null: any)
WITH seen AS MATERIALIZED (
    SELECT id, rank, priority FROM howdah.ready
    WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
    ORDER BY type_id, rank, id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT id, rank FROM seen WHERE id <= $5::bigint AND ($6::smallint IS NULL OR priority <> $6)
    ORDER BY rank, id LIMIT $4::integer
)
SELECT id, rank, true AS picked FROM picked
UNION ALL
(SELECT id, rank, false FROM seen WHERE (SELECT count(*) FROM picked) < $4::integer ORDER BY rank DESC, id DESC LIMIT 1)
ORDER BY rank, id, picked DESC
