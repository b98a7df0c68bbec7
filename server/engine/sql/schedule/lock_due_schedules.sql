-- Returns schedules that are due, locked until the end of the transaction. Schedules that another broker has locked are
-- skipped. A schedule that another broker has just fired is not returned, because FOR UPDATE checks the condition again. $1 at
-- most $2 names and $3 last updates of schedules that this broker cannot plan
SELECT *, now() AS now FROM howdah.schedule
WHERE next_at <= now()
  AND updated IS DISTINCT FROM ($3::timestamptz[])[array_position($2::text[], name)]
ORDER BY next_at LIMIT $1::integer
FOR UPDATE SKIP LOCKED
