-- Returns history partitions that may have jobs which ended before this time. $1 time (null: all)
SELECT c.relname::text AS part
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'howdah.history'::regclass
  AND ($1::timestamptz IS NULL OR c.relname !~ '^history_[0-9]{8}$'
       OR to_date(right(c.relname, 8), 'YYYYMMDD') <= ($1 AT TIME ZONE 'UTC')::date)
ORDER BY c.relname
