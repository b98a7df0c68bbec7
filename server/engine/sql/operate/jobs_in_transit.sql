-- Returns jobs that were in transit to another store when a broker stopped the move. $1 type_id $2 at most
SELECT id, 0::bigint AS sort_position, job::text AS job, payload FROM howdah.leaving WHERE type_id = $1::integer ORDER BY id LIMIT $2::integer
