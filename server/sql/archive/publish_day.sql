-- The files of a day are written and compared: from now on every run gives them their names, instead of writing them
-- again. $1 day $2 run $3 manifest
UPDATE howdah.archive SET state = 'publishing', manifest = $3::text::jsonb
WHERE day = $1::text::date AND run = $2 AND state IN ('sealed', 'late') RETURNING day::text AS day
