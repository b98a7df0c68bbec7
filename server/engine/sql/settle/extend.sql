-- Moves the deadlines of leases to now + duration. $1 id[] (sorted, unique) $2 token[] $3 duration_ms[]
UPDATE howdah.leased
SET deadline = now() + ($3::bigint[])[width_bucket(id, $1::bigint[])] * interval '1 millisecond'
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
RETURNING id
