-- For metrics: counts days that have been over for $1 minutes and have jobs which are not archived; 0 without an archive.
SELECT CASE WHEN EXISTS (SELECT FROM howdah.archive_target)
            THEN (SELECT count(*) FROM howdah.days_to_archive(((now() - $1::integer * interval '1 minute') AT TIME ZONE 'UTC')::date))
            ELSE 0 END AS days
