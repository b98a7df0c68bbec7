-- Returns one schedule, without a lock. $1 name
SELECT * FROM howdah.schedule WHERE name = $1::text
