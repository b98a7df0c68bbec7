-- What follows from the end of special jobs, in the transaction that ends them; see howdah.after_end.
-- $1 id[] $2 type_id[] $3 key[] $4 options[] $5 state[]
SELECT kind, type_id, rank, jobs
FROM howdah.after_end($1::bigint[], $2::integer[], $3::text[], $4::jsonb[], $5::smallint[])
