-- Which of these leases another transaction has locked at this moment. It is asked when a batch of outcomes met a lock:
-- the others need not wait. $1 id[]
WITH free AS MATERIALIZED (
    SELECT id FROM howdah.leased WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED
)
SELECT id FROM howdah.leased WHERE id = ANY ($1) AND id NOT IN (SELECT id FROM free)
