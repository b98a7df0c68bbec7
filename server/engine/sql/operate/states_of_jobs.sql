-- Returns the task types and states of jobs. $1 id[]
SELECT j.id, t.name AS task_type, j.state
FROM (SELECT id, type_id, 'ready' AS state FROM howdah.ready WHERE id = ANY ($1::bigint[])
      UNION ALL SELECT id, type_id, 'leased' FROM howdah.leased WHERE id = ANY ($1::bigint[])
      UNION ALL SELECT id, type_id, 'scheduled' FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
      UNION ALL SELECT id, type_id, 'waiting' FROM howdah.waiting WHERE id = ANY ($1::bigint[])
      UNION ALL SELECT id, type_id, 'dead' FROM howdah.dead WHERE id = ANY ($1::bigint[])
      UNION ALL SELECT id, type_id, outcome::text FROM howdah.history_of($1::bigint[])) j
JOIN howdah.task_type t ON t.id = j.type_id
