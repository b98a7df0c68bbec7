-- Returns which of the given jobs are not finished. $1 id[]
SELECT id FROM howdah.ready WHERE id = ANY ($1::bigint[])
UNION SELECT id FROM howdah.leased WHERE id = ANY ($1::bigint[])
UNION SELECT id FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
UNION SELECT id FROM howdah.waiting WHERE id = ANY ($1::bigint[])
UNION SELECT id FROM howdah.dead WHERE id = ANY ($1::bigint[])
