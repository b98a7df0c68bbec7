-- Returns ids of jobs of a type, by id. There is no index by type, so a call reads at most 20,000 rows. If it selects fewer
-- jobs than requested, it also returns the last row that it read, with picked false: the next call continues after that row.
-- $1 type $2 (unused) $3 id after $4 at most
WITH seen AS MATERIALIZED (
    SELECT id, type_id FROM howdah.{table} WHERE {after} ORDER BY {scan} LIMIT 20000
),
picked AS (
    SELECT id FROM seen WHERE {of_type} ORDER BY id LIMIT $4::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $4::integer
ORDER BY id, picked DESC
