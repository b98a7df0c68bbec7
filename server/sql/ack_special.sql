-- Acks of special jobs; see howdah.ack_special. $1 id[] (sorted, unique) $2 token[] $3 result[] $4 next type_id[]
SELECT kind, id, type_id, rank, jobs FROM howdah.ack_special($1::bigint[], $2::bigint[], $3::bytea[], $4::integer[])
