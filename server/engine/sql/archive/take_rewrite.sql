-- Reserves an archived day whose files are to be rewritten; returns no row if another run has reserved the day, or if jobs of
-- the day are being archived. If an earlier run has already written new files, it returns their manifest. $1 day $2 run $3
-- broker $4 ms until another run may take the day
UPDATE howdah.archive a SET run = $2, held_by = $3, held_until = now() + $4::bigint * interval '1 ms', error = NULL
WHERE a.day = $1::text::date AND a.state IN ('archived', 'dropped') AND a.manifest IS NOT NULL
  AND (a.held_until IS NULL OR a.held_until <= now())
RETURNING a.url, a.manifest::text AS manifest, coalesce(a.rewrite::text, '') AS rewrite
