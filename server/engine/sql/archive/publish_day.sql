-- Records the manifest of the files of a day, which are written and verified. From now on, a run that takes over the day gives
-- these files their final names instead of writing them again. $1 day $2 run $3 manifest
UPDATE howdah.archive SET state = 'publishing', manifest = $3::text::jsonb
WHERE day = $1::text::date AND run = $2 AND state IN ('sealed', 'late') RETURNING day::text AS day
