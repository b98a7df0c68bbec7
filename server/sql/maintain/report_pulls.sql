-- Notes for each type when programs last called this broker for its jobs. All brokers share a row, so it is left alone while it is
-- at most 15 s behind: a type that is pulled all the time costs an update every 15 s, however many brokers and programs there are.
-- $1 type[] $2 how long ago, ms[]
INSERT INTO howdah.pull AS p (type_id, last)
SELECT t.id, now() - u.ago_ms * interval '1 millisecond'
FROM unnest($1::integer[], $2::bigint[]) AS u(type_id, ago_ms)
JOIN howdah.task_type t ON t.id = u.type_id
LEFT JOIN howdah.pull o ON o.type_id = t.id
WHERE o.last IS NULL OR o.last < now() - u.ago_ms * interval '1 millisecond' - interval '15 seconds'
ORDER BY t.id
ON CONFLICT (type_id) DO UPDATE SET last = greatest(p.last, excluded.last)
