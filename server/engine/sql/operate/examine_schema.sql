-- Returns facts about the schema for `howdah doctor`, as one JSON object. Any role that may read the tables may run it. It
-- reads statistics and the catalog. Of Howdah's tables, it only reads brokers and whether default partitions have rows.
-- * Sizes are pages that the last VACUUM or ANALYZE has seen, with indexes: no lock is needed.
-- * made_s, serving_s: age of the schema, and of the oldest living broker.
-- * collated_indexes: indexes whose order changes with the collation of the database. Howdah creates no such index.
-- * lock_holders: idle transactions with a lock that a SELECT without FOR UPDATE does not take. Row locks are not listed in
--   pg_locks, but the statement that takes them also locks the table, in the mode RowShareLock or a stronger one.
-- * unidentified: tables whose rows a subscriber cannot tell apart. published: on these, UPDATE and DELETE fail.
SELECT json_build_object(
    'owns', (SELECT pg_has_role(current_user, relowner, 'USAGE') FROM pg_class WHERE oid = 'howdah.history'::regclass),
    'brokers', (SELECT count(*) FROM howdah.broker WHERE expires > now()),
    'releases', (SELECT json_agg(DISTINCT release) FROM howdah.schema_part),
    'default_rows', EXISTS (SELECT FROM howdah.history_default) OR EXISTS (SELECT FROM howdah.payload_default)
        OR EXISTS (SELECT FROM howdah.job_tag_default),
    'tables', (
        SELECT json_agg(json_build_object(
            'name', c.relname, 'live_rows', pg_stat_get_live_tuples(c.oid),
            'bytes', (greatest(c.relpages, 0) + (SELECT coalesce(sum(greatest(x.relpages, 0)), 0) FROM pg_index i
                      JOIN pg_class x ON x.oid = i.indexrelid WHERE i.indrelid = c.oid))
                     * current_setting('block_size')::bigint,
            'autovacuum', NOT coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false),
            'analyzed', coalesce(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)) IS NOT NULL
                        OR c.reltuples >= 0) ORDER BY t.ordinal)
        FROM (VALUES (1, 'howdah.ready'::regclass), (2, 'howdah.leased'::regclass),
                     (3, 'howdah.scheduled'::regclass), (4, 'howdah.waiting'::regclass)) AS t(ordinal, id)
        JOIN pg_class c ON c.oid = t.id),
    'invalid_indexes', (
        SELECT coalesce(json_agg(x.relname ORDER BY x.relname), '[]') FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE NOT i.indisvalid
          AND x.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)),
    'made_s', (SELECT extract(epoch FROM now() - p.changed)::bigint FROM howdah.schema_part p WHERE p.part = 'tables'),
    'serving_s', (SELECT extract(epoch FROM now() - min(b.started))::bigint FROM howdah.broker b WHERE b.expires > now()),
    'collated_indexes', (
        SELECT coalesce(json_agg(i.indexrelid::regclass ORDER BY i.indexrelid::regclass::text), '[]')
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        WHERE c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)
          AND EXISTS (SELECT FROM unnest(i.indcollation) n JOIN pg_collation o ON o.oid = n WHERE o.collname NOT IN ('C', 'POSIX'))),
    'lock_holders', (
        SELECT coalesce(json_agg(json_build_object('pid', a.pid, 'user', coalesce(a.usename, ''),
                   'application', coalesce(a.application_name, ''), 'idle_s', extract(epoch FROM now() - a.state_change)::bigint,
                   'tables', held.tables) ORDER BY a.state_change), '[]')
        FROM pg_stat_activity a
        CROSS JOIN LATERAL (
            SELECT json_agg(DISTINCT c.relname) AS tables FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
            WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)
        ) held
        WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
          AND a.state_change < now() - interval '5 s' AND held.tables IS NOT NULL),
    'unidentified', (
        SELECT coalesce(json_agg(json_build_object('name', c.oid::regclass, 'published', EXISTS (
            SELECT FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
            WHERE (p.pubupdate OR p.pubdelete)
              AND to_regclass(format('%I.%I', t.schemaname, t.tablename)) IN (c.oid, pg_partition_root(c.oid)))) ORDER BY c.relname), '[]')
        FROM pg_class c
        WHERE c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)
          AND c.relkind IN ('r', 'p') AND c.relreplident <> 'f'
          AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))
)::text AS facts
