-- A broker goes on with a move no more: another one may. $1 type_id $2 broker
UPDATE howdah.type_move SET owner = NULL WHERE type_id = $1::integer AND owner = $2::integer
