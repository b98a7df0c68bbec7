-- Returns the files of the archive with jobs of a task type, up to a day, the latest day first: at least $3 if so many
-- exist, and all files of each day. $1 type $2 days since 0001-01-01 $3 number of files
SELECT f.day::text AS day, f.day - '0001-01-01'::date AS day_number, a.url, f.path, f.bytes, f.jobs
FROM (
    SELECT day, path, bytes, jobs FROM howdah.archive_file
    WHERE task_type = $1::text AND day <= '0001-01-01'::date + $2::integer
    ORDER BY day DESC FETCH FIRST ($3::integer) ROWS WITH TIES
) f JOIN howdah.archive a ON a.day = f.day
ORDER BY f.day DESC, f.path
