-- Returns the task types of jobs in any state. $1 id[]
SELECT j.id, j.type_id, t.name
FROM (SELECT id, type_id FROM howdah.ready WHERE id = ANY ($1::bigint[])
      UNION SELECT id, type_id FROM howdah.leased WHERE id = ANY ($1::bigint[])
      UNION SELECT id, type_id FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
      UNION SELECT id, type_id FROM howdah.waiting WHERE id = ANY ($1::bigint[])
      UNION SELECT id, type_id FROM howdah.dead WHERE id = ANY ($1::bigint[])
      UNION SELECT id, type_id FROM howdah.history_of($1::bigint[])) j
JOIN howdah.task_type t ON t.id = j.type_id
