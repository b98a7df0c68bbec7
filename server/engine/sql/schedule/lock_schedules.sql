-- Returns schedules that wait for their jobs to finish, locked until the end of the transaction. $1 name[] $2 at most $3 names
-- and $4 last updates of schedules that this broker cannot plan
SELECT *, now() AS now FROM howdah.schedule
WHERE name = ANY ($1::text[]) AND watching AND NOT paused
  AND updated IS DISTINCT FROM ($4::timestamptz[])[array_position($3::text[], name)]
LIMIT $2::integer
FOR UPDATE SKIP LOCKED
