-- One schedule, as it is. $1 name
SELECT * FROM howdah.schedule WHERE name = $1::text
