-- Jobs that have not begun by their time; see howdah.expire_jobs. $1 at most
SELECT kind, type_id, rank, jobs FROM howdah.expire_jobs($1::integer)
