-- Returns bulk operations before an id, the newest first. $1 id $2 only of this type (null: of any) $3 only those that have not
-- ended $4 at most
SELECT b.*, (SELECT o.name FROM howdah.broker o WHERE o.id = b.owner AND o.expires > now()) AS broker
FROM howdah.bulk b
WHERE b.id < $1::bigint AND ($2::text IS NULL OR b.task_type = $2) AND (b.ended IS NULL OR NOT $3::boolean)
ORDER BY b.id DESC LIMIT $4::integer
