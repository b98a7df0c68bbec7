-- Jobs that ask for more than a place in the order; see howdah.enqueue_jobs. $1 to $13 one entry a job, $14 to
-- $16 one a request with a key, $17 and $18 payloads that are kept apart.
SELECT kind, place, id, fate, type_id, rank, jobs
FROM howdah.enqueue_jobs($1::integer[], $2::integer[], $3::bigint[], $4::smallint[], $5::smallint[], $6::bigint[], $7::text[],
                         $8::jsonb[], $9::jsonb[], $10::bytea[], $11::bigint[], $12::bigint[], $13::jsonb[], $14::integer[],
                         $15::text[], $16::bytea[], $17::integer[], $18::bytea[])
