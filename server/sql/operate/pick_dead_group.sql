-- Returns ids of dead jobs of one error group, by id. The two parts of the union each read their part of the index in order.
-- $1 type $2 the group, or an error of it $3 id after $4 at most
SELECT id, 0::bigint AS rank, true AS picked FROM (
    (SELECT id FROM howdah.dead WHERE type_id = $1::integer AND error_group = $2::text AND id > $3::bigint
     ORDER BY type_id, error_group, id LIMIT $4::integer)
    UNION
    (SELECT id FROM howdah.dead WHERE type_id = $1::integer AND error_group = howdah.error_group($2) AND id > $3::bigint
     ORDER BY type_id, error_group, id LIMIT $4::integer)
) found
ORDER BY id LIMIT $4::integer
