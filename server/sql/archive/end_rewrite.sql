-- The old files of a day are deleted, or nothing had to be written: the day is free. $1 day $2 run
UPDATE howdah.archive SET rewrite = NULL, run = NULL, held_by = NULL, held_until = NULL
WHERE day = $1::text::date AND run = $2 RETURNING day::text AS day
