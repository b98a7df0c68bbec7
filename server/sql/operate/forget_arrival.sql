-- The move of a type to this store is over. $1 type_id
DELETE FROM howdah.type_arrival WHERE type_id = $1::integer
