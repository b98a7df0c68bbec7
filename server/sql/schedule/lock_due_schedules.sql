-- Returns schedules that are due, locked until the end of the transaction. Schedules that another broker has locked are
-- skipped. A schedule that another broker has just fired is not returned, because FOR UPDATE checks the condition again. $1 at
-- most $2 names and $3 last updates of schedules that this broker cannot plan
SELECT *, now() AS now FROM howdah.schedule s
WHERE next_at <= now()
  AND NOT EXISTS (SELECT FROM unnest($2::text[], $3::timestamptz[]) AS b(name, updated) WHERE b.name = s.name AND b.updated = s.updated)
ORDER BY next_at LIMIT $1::integer
FOR UPDATE SKIP LOCKED
