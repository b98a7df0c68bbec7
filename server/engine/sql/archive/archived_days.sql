-- Returns all days of the archive that the database knows, the newest first. $1 limit
SELECT a.day::text AS day, CASE WHEN a.rewrite IS NULL THEN a.state ELSE 'rewriting' END AS state, a.generation, coalesce(a.url, '') AS url, a.jobs, a.files, a.bytes,
       coalesce(a.manifest::text, '') AS manifest, coalesce(a.archived_by, '') AS archived_by, coalesce(a.error, '') AS error,
       (SELECT count(*) FROM howdah.archive_late l WHERE l.day = a.day) AS late
FROM howdah.archive a ORDER BY a.day DESC LIMIT $1::integer
