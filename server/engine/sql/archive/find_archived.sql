-- Returns files of the archive that may have the job of this id, by the index on ranges of ids, files of the latest day first.
-- MATERIALIZED finds the files before they are sorted: otherwise a planner without statistics reads all files in the order of
-- days.
-- $1 id $2 limit
WITH found AS MATERIALIZED (SELECT day, path, bytes FROM howdah.archive_file WHERE ids @> $1::bigint)
SELECT f.day::text AS day, a.url, f.path, f.bytes
FROM found f JOIN howdah.archive a ON a.day = f.day
ORDER BY f.day DESC, f.path LIMIT $2::integer
