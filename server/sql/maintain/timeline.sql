-- Which promotion made this server the primary, and of which database system: the first eight digits of the name of the WAL
-- file that it writes now are the timeline. (The control file knows of a promotion only after the next checkpoint.) No row of a
-- standby.
SELECT system_identifier::text AS system, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS timeline
FROM pg_control_system()
WHERE NOT pg_is_in_recovery()
