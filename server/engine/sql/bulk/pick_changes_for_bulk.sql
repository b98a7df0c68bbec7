-- Returns ids of jobs that a bulk operation has ended and that are not restored, by id. $1 the bulk operation $2 id after $3 at
-- most
SELECT job_id AS id, 0::bigint AS rank, true AS picked FROM howdah.bulk_change
WHERE bulk_id = $1::bigint AND undone IS NULL AND job_id > $2::bigint ORDER BY job_id LIMIT $3::integer
