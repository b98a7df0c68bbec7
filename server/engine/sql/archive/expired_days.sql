-- Returns days of the archive that are older than $1 days, the oldest first. Days whose partition still exists are left for
-- later.
SELECT a.day::text AS day FROM howdah.archive a
WHERE a.state = 'dropped' AND a.day < (now() AT TIME ZONE 'UTC')::date - $1::integer
ORDER BY a.day
