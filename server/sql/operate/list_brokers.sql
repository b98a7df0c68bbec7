-- The brokers that have a row, the newest first. Few are dead and still there: those whose leases are not rescued yet.
-- $1 at most
SELECT id, name, started, expires > now() AS lives
FROM howdah.broker ORDER BY id DESC LIMIT $1::integer
