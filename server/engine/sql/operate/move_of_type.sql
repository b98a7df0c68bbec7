-- Returns the move of a type from this store, and whether a broker carries it out. $1 name
SELECT t.name AS task_type, m.to_name, m.started,
       EXISTS (SELECT FROM howdah.broker b WHERE b.id = m.owner AND b.expires > now()) AS is_moving
FROM howdah.task_type t JOIN howdah.type_move m ON m.type_id = t.id WHERE t.name = $1::text
