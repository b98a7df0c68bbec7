-- Schedules that wait for their jobs to finish, locked until the end of the transaction. $1 name[] $2 at most
SELECT *, now() AS now FROM howdah.schedule
WHERE name = ANY ($1::text[]) AND watching AND NOT paused
LIMIT $2::integer
FOR UPDATE SKIP LOCKED
