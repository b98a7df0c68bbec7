-- Returns figures for metrics, every 15 s: whether brokers keep up with timed work, and how large the tables are. It reads the
-- schedules, which are few, and the catalog, but no jobs.
-- * A schedule without next_at is paused, has ended, or waits for its job.
-- * A failed firing postpones next_at, so lateness counts from next_planned, plus the longest jitter.
-- * Sizes count the pages that the last VACUUM or ANALYZE has seen, of tables, indexes and TOAST. Functions that measure files
--   would wait for sessions that have locked a table.
-- $1 maximum number of days to look ahead
WITH relations AS (
    SELECT coalesce(i.inhparent, c.oid) AS root, c.oid, c.reltoastrelid,
           greatest(c.relpages, 0)::bigint + coalesce(t.relpages, 0) AS pages
    FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.relkind IN ('r', 'p')
      AND c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)
),
indexed AS (
    SELECT r.root, r.pages + coalesce((SELECT sum(greatest(x.relpages, 0)) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                                       WHERE i.indrelid IN (r.oid, r.reltoastrelid)), 0) AS pages
    FROM relations r
),
sizes AS (
    SELECT root, (sum(pages) * current_setting('block_size')::integer)::bigint AS bytes FROM indexed GROUP BY root
),
late AS (
    SELECT max(now() - next_planned - jitter_ms * interval '1 ms') AS delay,
           count(*) FILTER (WHERE last_error IS NOT NULL) AS failing
    FROM howdah.schedule WHERE next_at IS NOT NULL
)
SELECT greatest(0, (extract(epoch FROM l.delay) * 1000)::bigint) AS delay_ms, l.failing,
       (SELECT count(*) FROM generate_series(1, $1::integer) AS d(days)
        WHERE (SELECT bool_and(howdah.has_table(p.parent || to_char((now() AT TIME ZONE 'UTC')::date + d.days, '_YYYYMMDD')))
               FROM (VALUES ('history'), ('payload'), ('job_tag'), ('audit')) p (parent))) AS days_ahead,
       (SELECT array_agg(c.relname::text ORDER BY c.relname) FROM sizes s JOIN pg_class c ON c.oid = s.root) AS tables,
       (SELECT array_agg(s.bytes ORDER BY c.relname) FROM sizes s JOIN pg_class c ON c.oid = s.root) AS bytes
FROM late l
