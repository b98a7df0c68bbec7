-- How many jobs of types with limits may be claimed now; see howdah.type_quota. $1 type_id[] $2 wanted[]
SELECT type_id, allowed, retry_in_ms FROM howdah.type_quota($1::integer[], $2::integer[])
