-- Schedules that are due, locked until the end of the transaction; those that another broker holds are its
-- own. Whoever comes later sees them moved on: FOR UPDATE looks at the condition again. $1 at most
SELECT *, now() AS now FROM howdah.schedule
WHERE next_at <= now()
ORDER BY next_at LIMIT $1::integer
FOR UPDATE SKIP LOCKED
