-- Records the manifest of the new files of a day, which are written and verified. From now on, a run that takes over the day
-- continues with these files instead of writing them again.
-- $1 day $2 run $3 manifest
UPDATE howdah.archive SET rewrite = $3::text::jsonb
WHERE day = $1::text::date AND run = $2 AND state IN ('archived', 'dropped') AND held_until IS NOT NULL
RETURNING day::text AS day
