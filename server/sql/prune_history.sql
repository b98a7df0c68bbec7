-- $1 day $2 types $3 keep only these (else delete them) $4 first block $5 blocks
SELECT deleted, next_block FROM howdah.prune_history($1::text::date, $2::integer[], $3::boolean, $4::bigint, $5::bigint)
