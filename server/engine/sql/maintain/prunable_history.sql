-- Returns days of history with jobs that are past the retention of their types and were not deleted yet. If a day is older than
-- the broker's setting, only jobs of types with a longer retention are left (keep). With an archive, it returns only archived
-- days.
-- $1 days kept
WITH aged AS (
    SELECT day, (now() AT TIME ZONE 'UTC')::date - day AS age
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day OFFSET 0) d
    WHERE i.inhparent = 'howdah.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
),
rule AS (
    SELECT day, age > $1::integer AS keep,
           (SELECT array_agg(t.id ORDER BY t.id) FROM howdah.task_type t
            WHERE CASE WHEN age > $1 THEN t.history_days >= age ELSE t.history_days < age END) AS types
    FROM aged
)
SELECT day::text AS day, types, keep FROM rule r
WHERE types IS NOT NULL AND howdah.may_delete_day(day)
  AND NOT EXISTS (SELECT FROM howdah.history_pruned p WHERE p.day = r.day AND p.types = r.types AND p.keep = r.keep)
ORDER BY day
