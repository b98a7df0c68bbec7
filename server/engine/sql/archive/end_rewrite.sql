-- Ends the rewrite of an archived day's files, after the old files were deleted or if no new files were needed. $1 day $2 run
UPDATE howdah.archive SET rewrite = NULL, run = NULL, held_by = NULL, held_until = NULL
WHERE day = $1::text::date AND run = $2 RETURNING day::text AS day
