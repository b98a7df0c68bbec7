-- Deletes the row of an archived day after its files were deleted. $1 day $2 run
DELETE FROM howdah.archive WHERE day = $1::text::date AND run = $2 AND state = 'dropped' RETURNING day::text AS day
