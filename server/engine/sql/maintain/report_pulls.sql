-- Records for each type when programs last called this broker for its jobs (PullJobs). All brokers share the row of a type. It
-- is updated only if the stored time is more than 15 s behind. So a type that is pulled all the time costs one update in 15 s,
-- with any number of brokers and programs.
-- $1 type[] $2 how long ago, ms[]
INSERT INTO howdah.pull AS p (type_id, last)
SELECT t.id, now() - u.ago_ms * interval '1 millisecond'
FROM unnest($1::integer[], $2::bigint[]) AS u(type_id, ago_ms)
JOIN howdah.task_type t ON t.id = u.type_id
LEFT JOIN howdah.pull o ON o.type_id = t.id
WHERE o.last IS NULL OR o.last < now() - u.ago_ms * interval '1 millisecond' - interval '15 seconds'
ORDER BY t.id
ON CONFLICT (type_id) DO UPDATE SET last = greatest(p.last, excluded.last)
