-- Returns days of which the database or the archive has finished jobs, the newest first. $1 from this time on $2 before this
-- time
SELECT d.day::text AS day
FROM (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'howdah.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
    UNION SELECT (finished AT TIME ZONE 'UTC')::date FROM howdah.history_default
    UNION SELECT a.day FROM howdah.archive a WHERE a.files > 0
) d
WHERE ($1::timestamptz IS NULL OR d.day >= ($1 AT TIME ZONE 'UTC')::date)
  AND ($2::timestamptz IS NULL OR d.day <= ($2 AT TIME ZONE 'UTC')::date)
ORDER BY d.day DESC
