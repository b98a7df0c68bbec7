-- Who may run next at limit keys that are due to be looked at; see howdah.admit. $1 gates at most
SELECT kind, type_id, rank, jobs FROM howdah.admit($1::integer)
