-- Returns the figures from which an archive run computes its pace. changed_rows: rows that all programs have changed so far in
-- all databases of this server. jobs: approximate number of jobs of the day (0: unknown). seconds_left: time until the day
-- should be archived. $1 day $2 ms after its end at which it should be archived
SELECT (SELECT coalesce(sum(d.tup_inserted + d.tup_updated + d.tup_deleted), 0)::bigint FROM pg_stat_database d) AS changed_rows,
       greatest((SELECT c.reltuples FROM pg_class c WHERE c.oid = to_regclass('howdah.history_' || replace($1::text, '-', ''))), 0)::float8 AS jobs,
       extract(epoch FROM ($1::text::date + 1)::timestamp AT TIME ZONE 'UTC' + $2::bigint * interval '1 ms' - now())::float8 AS seconds_left
