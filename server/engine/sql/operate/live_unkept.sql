-- Returns one unfinished job among the given jobs that history may not keep if it succeeds: by its own history mode or, without
-- one, because its type is one of the given types. $1 id[] $2 type_id[]
SELECT j.id, t.name
FROM (
    SELECT id, type_id, options FROM howdah.ready WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id, options FROM howdah.leased WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id, options FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id, options FROM howdah.waiting WHERE id = ANY ($1::bigint[])
) j JOIN howdah.task_type t ON t.id = j.type_id
WHERE coalesce(j.options ->> 'history' <> 'full', j.type_id = ANY ($2::integer[]))
ORDER BY j.id LIMIT 1
