-- Returns one schedule, locked until the end of the transaction. $1 name
SELECT *, now() AS now FROM howdah.schedule WHERE name = $1::text FOR UPDATE
