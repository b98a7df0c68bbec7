-- Files of the archive that may have the job of this id, by the index on ranges of ids; those of the latest day first.
-- $1 id $2 limit
SELECT f.day::text AS day, a.url, f.path, f.bytes
FROM howdah.archive_file f JOIN howdah.archive a ON a.day = f.day
WHERE f.ids @> $1::bigint ORDER BY f.day DESC, f.path LIMIT $2::integer
