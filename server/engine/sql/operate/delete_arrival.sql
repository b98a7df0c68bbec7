-- Ends the move of a type to this store by deleting its row in type_arrival. $1 type_id
DELETE FROM howdah.type_arrival WHERE type_id = $1::integer
