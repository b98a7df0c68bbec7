-- Returns leases whose deadline has passed. settle_nack.sql ends them and checks the deadline again, so a lease that was
-- extended meanwhile does not end. Locked leases are skipped, and found by the next sweep. $1 at most
SELECT id, token FROM howdah.leased
WHERE deadline IS NOT NULL AND deadline <= now()
ORDER BY deadline LIMIT $1::integer
FOR UPDATE SKIP LOCKED
