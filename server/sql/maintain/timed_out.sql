-- Leases whose deadline has passed. Ended by settle_nack, which looks at the deadline again: an extend
-- in between wins. What another transaction has locked is found again by the next sweep. $1 at most
SELECT id, token FROM howdah.leased
WHERE deadline IS NOT NULL AND deadline <= now()
ORDER BY deadline LIMIT $1::integer
FOR UPDATE SKIP LOCKED
