-- Returns which of the given leases another transaction has locked. Called after a lock made a batch of outcomes fail, so that
-- only the outcomes of locked leases wait. $1 id[]
WITH free AS MATERIALIZED (
    SELECT id FROM howdah.leased WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED
)
SELECT id FROM howdah.leased WHERE id = ANY ($1) AND id NOT IN (SELECT id FROM free)
