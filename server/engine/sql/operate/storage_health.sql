-- Returns the health of the storage: rows of the hot tables, the oldest snapshot that holds back VACUUM, the queue of NOTIFY,
-- history partitions. It runs on request and every 15 s. It reads statistics and the list of sessions, but no jobs.
-- * Rows are the estimates of pg_stat_user_tables; the view itself would read all tables of the database.
-- * autovacuum_threshold: the number of dead rows at which autovacuum starts, by the settings of the table or of the server.
-- * Without pg_read_all_stats, the state and the start of another role's session are null, but not its pid, its user and the
--   age of its snapshot. A role without that right gets fewer values, and no error.
-- * A transaction that has written holds back VACUUM from its own transaction id on, with or without a snapshot. A writer in
--   another database counts too, because every snapshot in this database reaches back to it. A snapshot in another database
--   does not count.
-- * A running VACUUM does not hold back another VACUUM. The catalog_xmin of a replication slot holds back only catalogs.
-- * A session without a database is a standby that sends hot_standby_feedback; other processes without a database hold back
--   nothing.
-- * A session that listens writes notifications inside a transaction, and waits there if its client does not read. Its state is
--   idle, and the start of its transaction is out of date, so the age of its snapshot is not known.
-- * If several sessions hold back VACUUM from the same transaction id on, the session with this transaction id is returned.
WITH tables AS (
    SELECT t.ordinal, pg_stat_get_live_tuples(c.oid) AS live_rows, pg_stat_get_dead_tuples(c.oid) AS dead_rows,
           coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
           + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8)
             * greatest(c.reltuples, 0) AS autovacuum_threshold
    FROM (VALUES (1, 'howdah.ready'::regclass), (2, 'howdah.leased'::regclass),
                 (3, 'howdah.scheduled'::regclass), (4, 'howdah.waiting'::regclass)) AS t(ordinal, id)
    JOIN pg_class c ON c.oid = t.id
    CROSS JOIN LATERAL (
        SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::float8 AS threshold,
               max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::float8 AS scale
        FROM pg_options_to_table(c.reloptions)
    ) o
),
holders AS (
    SELECT held.xid, held.is_own, a.leader_pid IS NOT NULL AS is_parallel_worker, 1 AS kind, a.pid, NULL::text AS name,
           a.usename::text AS user_name, a.datname::text AS database,
           coalesce(nullif(a.application_name, ''), nullif(a.backend_type, 'client backend')) AS application,
           a.state, CASE WHEN a.state IS DISTINCT FROM 'idle' THEN a.xact_start END AS since,
           (SELECT format('%s (%s)', b.name, b.id) FROM howdah.broker b
            WHERE b.id = substring(a.application_name FROM '^howdah listener ([0-9]{1,9}) ')::integer
              AND a.datname = current_database()) AS broker
    FROM pg_stat_activity a
    CROSS JOIN LATERAL (VALUES
        (a.backend_xid, true),
        (CASE WHEN a.datname = current_database()
                OR a.datid IS NULL AND coalesce(a.backend_type, 'walsender') = 'walsender'
              THEN a.backend_xmin END, false)
    ) AS held(xid, is_own)
    WHERE held.xid IS NOT NULL AND a.pid <> pg_backend_pid()
      AND coalesce(a.leader_pid, a.pid) NOT IN (SELECT pid FROM pg_stat_progress_vacuum WHERE pid IS NOT NULL)
    UNION ALL
    SELECT transaction, true, false, 2, NULL, gid, owner::text, database::text, NULL, NULL, prepared, NULL
    FROM pg_prepared_xacts
    UNION ALL
    SELECT xmin, false, false, 3, active_pid, slot_name::text, NULL, database::text, NULL, NULL, NULL, NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL
),
oldest AS (
    SELECT * FROM holders ORDER BY age(xid) DESC, is_own DESC, is_parallel_worker, since LIMIT 1
)
SELECT t.live_rows, t.dead_rows, t.autovacuum_threshold,
       o.kind, o.pid, o.name, o.user_name, o.database, o.application, o.state, o.broker,
       o.xid::text::bigint AS xid, age(o.xid)::bigint AS xid_age,
       (extract(epoch FROM clock_timestamp() - o.since) * 1000)::bigint AS age_ms,
       pg_notification_queue_usage() AS queue_usage,
       (SELECT count(*) FROM pg_inherits
        WHERE inhparent = 'howdah.history'::regclass AND inhrelid <> 'howdah.history_default'::regclass) AS partitions
FROM (SELECT array_agg(live_rows ORDER BY ordinal) AS live_rows, array_agg(dead_rows ORDER BY ordinal) AS dead_rows,
             array_agg(autovacuum_threshold::bigint ORDER BY ordinal) AS autovacuum_threshold
      FROM tables) AS t
LEFT JOIN oldest o ON true
