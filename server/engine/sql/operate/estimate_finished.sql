-- Estimates the number of finished jobs on the days of a time range, from the statistics of Postgres. $1 since $2 until (null:
-- now)
SELECT coalesce(sum(greatest(pg_stat_get_live_tuples(c.oid), c.reltuples::bigint, 0)), 0)::bigint AS jobs
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'howdah.history'::regclass
  AND (c.relname = 'history_default'
       OR substring(c.relname FROM '[0-9]{8}$') BETWEEN to_char($1::timestamptz AT TIME ZONE 'UTC', 'YYYYMMDD')
                                                    AND to_char(coalesce($2::timestamptz, now()) AT TIME ZONE 'UTC', 'YYYYMMDD'))
