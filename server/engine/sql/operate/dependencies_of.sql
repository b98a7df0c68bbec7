-- Returns the task type and the options of a job, for the results of its dependencies. $1 id
SELECT t.name AS task_type, j.options
FROM (SELECT type_id, options FROM howdah.leased WHERE id = $1::bigint
      UNION ALL SELECT type_id, options FROM howdah.ready WHERE id = $1::bigint
      UNION ALL SELECT type_id, options FROM howdah.scheduled WHERE id = $1::bigint
      UNION ALL SELECT type_id, options FROM howdah.waiting WHERE id = $1::bigint
      UNION ALL SELECT type_id, options FROM howdah.dead WHERE id = $1::bigint
      UNION ALL SELECT type_id, options FROM howdah.history_of(ARRAY[$1::bigint])) j
JOIN howdah.task_type t ON t.id = j.type_id
LIMIT 1
