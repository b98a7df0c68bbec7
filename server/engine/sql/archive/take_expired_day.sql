-- Reserves a day of the archive whose files are to be deleted; returns no row if another run has reserved the day, or if jobs
-- were added to the day. From now on, look-ups do not read its files. $1 day $2 days that are kept $3 run $4 broker $5 ms until
-- another run may take the day
WITH taken AS (
    UPDATE howdah.archive a SET run = $3, held_by = $4, held_until = now() + $5::bigint * interval '1 ms', error = NULL,
           jobs = 0, files = 0, bytes = 0, rewrite = NULL
    WHERE a.day = $1::text::date AND a.day < (now() AT TIME ZONE 'UTC')::date - $2::integer AND a.state = 'dropped'
      AND (a.held_until IS NULL OR a.held_until <= now())
    RETURNING a.day, a.url, a.manifest
),
files AS (
    DELETE FROM howdah.archive_file f USING taken t WHERE f.day = t.day
)
SELECT url, coalesce(manifest::text, '') AS manifest FROM taken
