-- Leases whose deadline has passed. settle_nack ends them and checks the deadline again, so an extension in between wins.
-- Locked ones are found again by the next sweep. $1 at most
SELECT id, token FROM howdah.leased
WHERE deadline IS NOT NULL AND deadline <= now()
ORDER BY deadline LIMIT $1::integer
FOR UPDATE SKIP LOCKED
