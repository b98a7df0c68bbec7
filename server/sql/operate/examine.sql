-- What `howdah doctor` needs to know of a database, as one JSON object. Everything in it may be read by any role that owns the
-- schema. It reads settings, statistics and the catalog, and of Howdah's tables only the brokers and whether default partitions
-- have rows.
-- * reset_val: what a session of this role begins with; the broker's own session sets some of them for itself.
-- * Sizes are pages that the last VACUUM or ANALYZE has seen, with indexes: no lock is needed.
-- * numbackends: sessions of other roles are hidden in pg_stat_activity.
SELECT json_build_object(
    'settings', (SELECT json_object_agg(name, reset_val) FROM pg_settings WHERE name IN (
        'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'autovacuum_naptime',
        'max_connections', 'superuser_reserved_connections', 'shared_buffers', 'max_wal_size',
        'idle_in_transaction_session_timeout')),
    'now_us', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    'connections', (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database),
    'xid_age', (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
    'reads_all_stats', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
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
    'idle_slots', (SELECT coalesce(json_agg(slot_name ORDER BY slot_name), '[]') FROM pg_replication_slots WHERE NOT active)
)::text AS facts
