-- Ends a rewrite: the old files of the day are deleted, or nothing had to be written. $1 day $2 run
UPDATE howdah.archive SET rewrite = NULL, run = NULL, held_by = NULL, held_until = NULL
WHERE day = $1::text::date AND run = $2 RETURNING day::text AS day
