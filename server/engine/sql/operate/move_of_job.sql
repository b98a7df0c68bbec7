-- Returns the move of a job that is in transit to another store. $1 id
SELECT t.name AS task_type, m.to_name, m.started,
       EXISTS (SELECT FROM howdah.broker b WHERE b.id = m.owner AND b.expires > now()) AS is_moving
FROM howdah.leaving l JOIN howdah.type_move m ON m.type_id = l.type_id JOIN howdah.task_type t ON t.id = l.type_id
WHERE l.id = $1::bigint
