-- What a run that archives a day goes by: the rows that all programs have changed so far in all databases of this server, the jobs
-- of the day (about; 0: nobody has counted them), and the seconds that are left until it should be archived. $1 day $2 ms from its end
SELECT (SELECT coalesce(sum(d.tup_inserted + d.tup_updated + d.tup_deleted), 0)::bigint FROM pg_stat_database d) AS changed_rows,
       greatest((SELECT c.reltuples FROM pg_class c WHERE c.oid = to_regclass('howdah.history_' || replace($1::text, '-', ''))), 0)::float8 AS jobs,
       extract(epoch FROM ($1::text::date + 1)::timestamp AT TIME ZONE 'UTC' + $2::bigint * interval '1 ms' - now())::float8 AS seconds_left
