-- A day is archived, and what came late is too. $1 day $2 run $3 who $4 jobs $5 files $6 bytes $7 manifest
WITH done AS (
    UPDATE howdah.archive a SET state = 'archived', held_by = NULL, held_until = NULL, run = NULL, archived_at = now(),
           archived_by = $3, jobs = $4, files = $5, bytes = $6, manifest = $7::text::jsonb, error = NULL
    WHERE a.day = $1::text::date AND a.run = $2 AND a.state = 'publishing' RETURNING a.day, a.generation
),
written AS (
    DELETE FROM howdah.archive_late l USING done d WHERE l.day = d.day AND l.generation <= d.generation
)
SELECT day::text AS day FROM done
