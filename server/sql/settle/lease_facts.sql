-- What the retry policy needs to know of leases about to be nacked.
-- $1 id[] (sorted, unique) $2 token[]
SELECT id, type_id, attempt, max_attempts, options
FROM howdah.leased
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
