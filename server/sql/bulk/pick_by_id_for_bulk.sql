-- Returns ids of leased or waiting jobs of a type for a bulk operation, by id. There is no index by type, so a call reads at
-- most 20,000 rows. If it selects fewer jobs than requested, it also returns the last row that it read, with picked false: the
-- next call continues after that row.
-- $1 type $2 id after $3 at most $4 last id $5 another priority than this (null: any)
WITH seen AS MATERIALIZED (
    SELECT id, type_id, priority FROM howdah.{table} WHERE id > $2::bigint AND id <= $4::bigint ORDER BY id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT id FROM seen WHERE type_id = $1::integer AND ($5::smallint IS NULL OR priority <> $5) ORDER BY id LIMIT $3::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $3::integer
ORDER BY id, picked DESC
