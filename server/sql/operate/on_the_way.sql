-- Jobs that were on their way to another store when somebody stopped. $1 type_id $2 at most
SELECT id, 0::bigint AS place, job::text AS job, payload FROM howdah.leaving WHERE type_id = $1::integer ORDER BY id LIMIT $2::integer
