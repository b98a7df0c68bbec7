-- Begins a transaction that changes jobs of a bulk operation, if it is running and this broker still has it. Whoever pauses
-- or cancels it waits for this row, for as long as the transaction lasts. $1 id $2 this broker
SELECT id FROM howdah.bulk WHERE id = $1::bigint AND state = 'running' AND owner = $2::integer FOR UPDATE
