-- Returns ids of dead jobs of a type for a bulk operation, by id. A call reads at most 20,000 rows. If it selects fewer jobs
-- than requested, it also returns the last row that it read, with picked false: the next call continues after that row.
-- $1 type $2 id after $3 at most $4 last id $5 died before this time (null: any time)
WITH seen AS MATERIALIZED (
    SELECT id, died FROM howdah.dead
    WHERE type_id = $1::integer AND id > $2::bigint AND id <= $4::bigint ORDER BY type_id, id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT id FROM seen WHERE $5::timestamptz IS NULL OR died <= $5 ORDER BY id LIMIT $3::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $3::integer
ORDER BY id, picked DESC
