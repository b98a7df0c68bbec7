-- Returns when these jobs finished or died, if that is known: a type may keep no history. $1 id[]
SELECT id, finished FROM howdah.history_of($1::bigint[])
UNION ALL SELECT id, died FROM howdah.dead WHERE id = ANY ($1::bigint[])
