-- The new files of a day are written and compared: from now on every run goes on with them. $1 day $2 run $3 manifest
UPDATE howdah.archive SET rewrite = $3::text::jsonb
WHERE day = $1::text::date AND run = $2 AND state IN ('archived', 'dropped') AND held_until IS NOT NULL
RETURNING day::text AS day
