-- Returns facts about a server and a database for `howdah doctor`, as one JSON object. The database need not have a schema yet,
-- and any role may run it. It reads settings, statistics and the catalog.
-- * reset_val is the value with which a session of this role begins. The column setting has the values of this session,
--   which sets some itself.
-- * resets: the statement that removes the value of the database or of the role, for settings that have one.
-- * collation: its version when the database was created, and its version in the system now, if they differ.
SELECT json_build_object(
    'settings', (SELECT json_object_agg(name, reset_val) FROM pg_settings WHERE name IN (
        'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'autovacuum_naptime',
        'max_connections', 'max_locks_per_transaction', 'max_prepared_transactions', 'shared_buffers', 'max_wal_size',
        'idle_in_transaction_session_timeout')),
    'resets', (
        SELECT coalesce(json_object_agg(o.name, o.statement), '{}') FROM (
            SELECT DISTINCT ON (v.name) v.name, CASE
                WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET %I', d.datname, v.name)
                WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET %I', session_user, v.name)
                ELSE format('ALTER ROLE %I IN DATABASE %I RESET %I', session_user, d.datname, v.name) END AS statement
            FROM pg_db_role_setting s
            JOIN pg_database d ON d.datname = current_database() AND s.setdatabase IN (0, d.oid)
            CROSS JOIN LATERAL (SELECT split_part(c, '=', 1) AS name FROM unnest(s.setconfig) c) v
            WHERE s.setrole IN (0, (SELECT r.oid FROM pg_roles r WHERE r.rolname = session_user))
            ORDER BY v.name, s.setrole = 0, s.setdatabase = 0) o),
    'now_us', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    'xid_age', (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
    'reads_all_stats', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    'has_schema', to_regclass('howdah.schema_part') IS NOT NULL,
    'collation', (SELECT json_build_array(d.datcollversion, v.now) FROM pg_database d, pg_database_collation_actual_version(d.oid) AS v(now)
                  WHERE d.datname = current_database() AND d.datcollversion <> v.now),
    'history_locks', (
        WITH parts AS (SELECT inhrelid FROM pg_inherits
                       WHERE inhparent IN (to_regclass('howdah.history'), to_regclass('howdah.payload')))
        SELECT (SELECT count(*) FROM parts) + (SELECT count(*) FROM pg_index x JOIN parts ON x.indrelid = inhrelid)),
    'idle_slots', (SELECT coalesce(json_agg(slot_name ORDER BY slot_name), '[]') FROM pg_replication_slots WHERE NOT active)
)::text AS facts
