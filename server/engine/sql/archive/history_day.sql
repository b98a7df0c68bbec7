-- Returns where the finished jobs of one day are: its files in the archive, and which jobs of the database are not in these
-- files. Without files, it returns one row without a path. late is true if the files lack only jobs that arrived after the
-- day was written. It is false if they lack all jobs of the day in the database: the day was never written, or its partition
-- was dropped and newer jobs are not written yet. $1 day $2 type (null: all)
SELECT coalesce(a.state, '') AS state, coalesce(a.generation, 0) AS generation,
       EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = d.day) AS has_late,
       coalesce(a.state IN ('archived', 'late') OR a.state = 'publishing' AND EXISTS (
           SELECT FROM howdah.archive_late l WHERE l.day = d.day AND l.generation = a.generation), false) AS late,
       d.day::text AS day, a.url, f.path, f.bytes
FROM (SELECT $1::text::date AS day) d
    LEFT JOIN howdah.archive a ON a.day = d.day
    LEFT JOIN howdah.archive_file f ON f.day = d.day AND ($2::text IS NULL OR f.task_type = $2)
ORDER BY f.path
