-- Returns ids of scheduled jobs of a type, by id. There is no index by type, so a call reads at most 20,000 rows. If it selects
-- fewer jobs than requested, it also returns the last row that it read, with picked false: the next call continues after that
-- row. Error groups are computed only for jobs of this type, because that is slow.
-- $1 type $2 error group, or an error of it (null: any) $3 id after $4 at most $5 only jobs that failed before
WITH seen AS MATERIALIZED (
    SELECT id, type_id, failures FROM howdah.scheduled WHERE id > $3::bigint ORDER BY id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, failures FROM seen
        WHERE type_id = $1::integer AND (failures IS NOT NULL OR NOT $5::boolean) OFFSET 0
    ) of_type
    WHERE $2::text IS NULL OR howdah.failure_group(failures -> -1) IN ($2, (SELECT howdah.error_group($2)))
    ORDER BY id LIMIT $4::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $4::integer
ORDER BY id, picked DESC
