-- How far this server has got: as a primary, all that is committed is before this position; as a standby, all before it can be
-- read. (What is written and not flushed yet counts: commits need not wait for that.) And whose tables it has.
SELECT pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END,
                       '0/0')::bigint AS position,
       (SELECT id::text FROM howdah.identity) AS identity
