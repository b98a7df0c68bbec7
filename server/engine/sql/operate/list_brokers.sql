-- Returns brokers, the newest first. A dead broker has a row only until its leases are rescued, so these are few. $1 at most
SELECT id, name, started, expires > now() AS lives
FROM howdah.broker ORDER BY id DESC LIMIT $1::integer
