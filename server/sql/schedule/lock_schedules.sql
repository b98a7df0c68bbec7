-- Returns schedules that wait for their jobs to finish, locked until the end of the transaction. $1 name[] $2 at most $3 names
-- and $4 last updates of schedules that this broker cannot plan
SELECT *, now() AS now FROM howdah.schedule s
WHERE name = ANY ($1::text[]) AND watching AND NOT paused
  AND NOT EXISTS (SELECT FROM unnest($3::text[], $4::timestamptz[]) AS b(name, updated) WHERE b.name = s.name AND b.updated = s.updated)
LIMIT $2::integer
FOR UPDATE SKIP LOCKED
