-- The dead jobs of a type with the most attempts, by their index: none is left out, however many there are. The index has no ids, so of
-- jobs with as many attempts any may come; to order all of them by id would read them all.
-- $1 type $2 jobs at most
SELECT id, attempt FROM howdah.dead WHERE type_id = $1::integer AND attempt > 0 ORDER BY type_id, attempt DESC LIMIT $2::integer
