-- Schedules that are due, locked until the end of the transaction. Those that another broker has locked are skipped. A broker
-- that comes later finds them no longer due, because FOR UPDATE checks the condition again. $1 at most
SELECT *, now() AS now FROM howdah.schedule
WHERE next_at <= now()
ORDER BY next_at LIMIT $1::integer
FOR UPDATE SKIP LOCKED
