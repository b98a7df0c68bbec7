-- Special jobs that are due; see howdah.promote_special. $1 at most
SELECT kind, type_id, rank, jobs FROM howdah.promote_special($1::integer)
