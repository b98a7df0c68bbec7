-- Returns which of the given jobs have not finished; a dead job counts as finished. $1 id[]
SELECT id FROM howdah.ready WHERE id = ANY ($1::bigint[])
UNION ALL SELECT id FROM howdah.leased WHERE id = ANY ($1::bigint[])
UNION ALL SELECT id FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
UNION ALL SELECT id FROM howdah.waiting WHERE id = ANY ($1::bigint[])
