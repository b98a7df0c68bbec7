-- Locks a bulk operation for a transaction that changes jobs, if it is running and this broker still owns it; else returns no
-- row. Callers that pause or cancel the operation wait until the transaction ends. $1 id $2 this broker
SELECT id FROM howdah.bulk WHERE id = $1::bigint AND state = 'running' AND owner = $2::integer FOR UPDATE
