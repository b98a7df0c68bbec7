-- Returns the WAL position of this server. On a primary, everything committed is before it; on a standby, everything before it
-- can be read. The position includes WAL that is not flushed yet, because a commit need not wait for the flush. Also returns
-- the identity of the database.
SELECT pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END,
                       '0/0')::bigint AS position,
       (SELECT id::text FROM howdah.identity) AS identity
