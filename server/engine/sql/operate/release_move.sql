-- Ends a broker's ownership of a move, so that another broker may continue it. $1 type_id $2 broker
UPDATE howdah.type_move SET owner = NULL WHERE type_id = $1::integer AND owner = $2::integer
