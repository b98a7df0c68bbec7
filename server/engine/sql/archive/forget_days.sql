-- Returns days of the archive that may have jobs which ended before a time, the oldest first. is_busy: an archive run works on
-- the day, so its files may get jobs that were deleted from the database after the run read them. $1 type (null: all) $2 time
-- (null: all)
SELECT a.day::text AS day, a.state NOT IN ('archived', 'dropped') OR coalesce(a.held_until > now(), false) AS is_busy,
       a.rewrite IS NOT NULL AS is_rewritten
FROM howdah.archive a
WHERE ($2::timestamptz IS NULL OR a.day <= ($2 AT TIME ZONE 'UTC')::date)
  AND (a.rewrite IS NOT NULL OR a.state NOT IN ('archived', 'dropped')
       OR EXISTS (SELECT FROM howdah.archive_file f WHERE f.day = a.day AND ($1::text IS NULL OR f.task_type = $1)))
ORDER BY a.day
