-- Renews held_until of the day that an archive run works on; returns no row if another run has taken the day. $1 day $2 run $3
-- ms until another run may take the day
UPDATE howdah.archive SET held_until = now() + $3::bigint * interval '1 ms'
WHERE day = $1::text::date AND run = $2 AND held_until IS NOT NULL RETURNING day::text AS day
