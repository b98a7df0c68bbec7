-- Returns ids of scheduled jobs of a type for a bulk operation, by id. There is no index by type, so a call reads at most
-- 20,000 rows. If it selects fewer jobs than requested, it also returns the last row that it read, with picked false: the next
-- call continues after that row. The error group is computed only for jobs of this type, because that is slow.
-- With $7, for a retry, a job is selected only if it failed before the operation started and is not due yet. So a job that the
-- operation has already retried, or that has failed again since, is not selected.
-- $1 type $2 id after $3 at most $4 last id $5 another priority than this (null: any) $6 error group, or an error of it (null:
-- any) $7 only jobs that failed before this time (null: any job)
WITH seen AS MATERIALIZED (
    SELECT id, type_id, priority, run_at, failures FROM howdah.scheduled
    WHERE id > $2::bigint AND id <= $4::bigint ORDER BY id LIMIT 20000
),
of_type AS MATERIALIZED (
    SELECT id, failures FROM seen
    WHERE type_id = $1::integer AND ($5::smallint IS NULL OR priority <> $5)
      AND ($6::text IS NULL OR failures IS NOT NULL)
      AND ($7::timestamptz IS NULL
           OR (run_at > now() AND (failures -> -1 ->> 'failed')::timestamptz <= $7))
),
picked AS MATERIALIZED (
    SELECT id FROM of_type
    WHERE $6 IS NULL OR howdah.failure_group(failures -> -1) IN ($6, (SELECT howdah.error_group($6)))
    ORDER BY id LIMIT $3::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $3::integer
ORDER BY id, picked DESC
