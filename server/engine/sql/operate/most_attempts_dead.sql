-- Returns the dead jobs of a type with the most attempts, by their index: no job is left out, however many there are. The index
-- has no ids, so the order of jobs with the same number of attempts is arbitrary; ordering them by id would read all of them.
-- $1 type $2 jobs at most
SELECT id, attempt FROM howdah.dead WHERE type_id = $1::integer AND attempt > 0 ORDER BY type_id, attempt DESC LIMIT $2::integer
