-- Marks a day, and its late jobs, as archived. Records all files of the manifest, so that look-ups find jobs in them. The
-- manifest also lists the files of earlier generations, some of which may have got new names. $1 day $2 run $3 broker $4 jobs
-- $5 files $6 bytes
-- $7 manifest
WITH done AS (
    UPDATE howdah.archive a SET state = 'archived', held_by = NULL, held_until = NULL, run = NULL, archived_at = now(),
           archived_by = $3, jobs = $4, files = $5, bytes = $6, manifest = $7::text::jsonb, error = NULL
    WHERE a.day = $1::text::date AND a.run = $2 AND a.state = 'publishing' RETURNING a.day, a.generation, a.manifest
),
written AS (
    DELETE FROM howdah.archive_late l USING done d WHERE l.day = d.day AND l.generation <= d.generation
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
