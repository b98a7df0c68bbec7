-- The run goes on; no row: another run has its day. $1 day $2 run $3 ms until others may take it
UPDATE howdah.archive SET held_until = now() + $3::bigint * interval '1 ms'
WHERE day = $1::text::date AND run = $2 AND held_until IS NOT NULL RETURNING day::text AS day
