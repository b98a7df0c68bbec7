-- Returns the number of jobs in the files of the archive with jobs of a task type. $1 type
SELECT coalesce(sum(jobs), 0)::bigint AS jobs FROM howdah.archive_file WHERE task_type = $1::text
