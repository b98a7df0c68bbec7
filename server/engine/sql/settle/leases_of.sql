-- Returns the leases of these jobs, and their brokers (0: pulled without a broker). $1 id[] $2 only of these types (null: of
-- any)
SELECT id, token, coalesce(broker_id, 0) AS broker_id FROM howdah.leased WHERE id = ANY ($1::bigint[])
  AND ($2::integer[] IS NULL OR type_id = ANY ($2::integer[])) ORDER BY id
