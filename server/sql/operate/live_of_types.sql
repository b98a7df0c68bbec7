-- Returns one unfinished job among the given jobs that is of one of the given types. $1 id[] $2 type_id[]
SELECT j.id, t.name
FROM (
    SELECT id, type_id FROM howdah.ready WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id FROM howdah.leased WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
    UNION ALL SELECT id, type_id FROM howdah.waiting WHERE id = ANY ($1::bigint[])
) j JOIN howdah.task_type t ON t.id = j.type_id
WHERE j.type_id = ANY ($2::integer[])
ORDER BY j.id LIMIT 1
