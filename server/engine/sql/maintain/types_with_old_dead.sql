-- Returns the types that have dead jobs older than dead_days, and the dead_days of each: the type's own, or else the
-- cluster's. One look-up in an index per type.
SELECT t.id, d.days
FROM howdah.settings s CROSS JOIN howdah.task_type t
CROSS JOIN LATERAL (SELECT coalesce(t.dead_days, s.dead_days) AS days) d
WHERE d.days IS NOT NULL
  AND EXISTS (SELECT FROM howdah.dead j WHERE j.type_id = t.id AND j.died < now() - d.days * interval '1 day')
ORDER BY t.id
