-- Returns schedules that wait for their jobs to finish, locked until the end of the transaction. $1 name[] $2 at most $3 names
-- of schedules that this broker cannot plan
SELECT *, now() AS now FROM howdah.schedule
WHERE name = ANY ($1::text[]) AND name <> ALL ($3::text[]) AND watching AND NOT paused
LIMIT $2::integer
FOR UPDATE SKIP LOCKED
