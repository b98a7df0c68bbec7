-- Replaces the rows of the old files of a day by rows of the new files, which have their final names. From now on, jobs are
-- looked up in the new files.
-- $1 day $2 run $3 jobs $4 files $5 bytes $6 manifest
WITH done AS (
    UPDATE howdah.archive a SET jobs = $3, files = $4, bytes = $5, manifest = $6::text::jsonb
    WHERE a.day = $1::text::date AND a.run = $2 AND a.rewrite IS NOT NULL RETURNING a.day, a.manifest
),
before AS (
    DELETE FROM howdah.archive_file f USING done d WHERE f.day = d.day
),
files AS (
    INSERT INTO howdah.archive_file (day, path, task_type, ids, jobs, bytes)
    SELECT d.day, p.path, p.task_type, int8range(p.min_id, p.max_id, '[]'), p.rows, p.bytes
    FROM done d, jsonb_to_recordset(d.manifest -> 'parts')
        AS p(path text, task_type text, min_id bigint, max_id bigint, rows bigint, bytes bigint)
)
SELECT day::text AS day FROM done
