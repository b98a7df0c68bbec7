-- Returns the data about leases from which the broker computes retry delays before a nack. $1 id[] (sorted, unique) $2 token[]
SELECT id, type_id, attempt, max_attempts, options
FROM howdah.leased
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
