-- Returns the system identifier of this server, and its timeline, which changes with each promotion. The timeline is the first
-- eight digits of the name of the current WAL file; the control file shows a promotion only after the next checkpoint. A
-- standby returns no row.
SELECT system_identifier::text AS system, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS timeline
FROM pg_control_system()
WHERE NOT pg_is_in_recovery()
