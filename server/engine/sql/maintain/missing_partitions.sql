-- Returns the missing day partitions from yesterday to $1 days ahead. Today's comes first, because until it exists, the rows of
-- today go to the default partition.
SELECT p.parent, p.by_column, d.day::text AS day
FROM (VALUES ('history', 'finished'), ('payload', 'created'), ('job_tag', 'created'), ('bulk_change', 'changed'), ('audit', 'time'))
         p (parent, by_column),
     (SELECT (now() AT TIME ZONE 'UTC')::date AS today) t,
     LATERAL (SELECT today + n AS day FROM generate_series(-1, $1::integer) n OFFSET 0) d
WHERE NOT howdah.has_table(p.parent || to_char(d.day, '_YYYYMMDD')) OR NOT howdah.has_table(p.parent || '_default')
ORDER BY d.day < t.today, d.day, p.parent
