-- The leases of these jobs, and their brokers (0: pulled, no broker has it). $1 id[]
SELECT id, token, coalesce(broker_id, 0) AS broker_id FROM howdah.leased WHERE id = ANY ($1::bigint[]) ORDER BY id
