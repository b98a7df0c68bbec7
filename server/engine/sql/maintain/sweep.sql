-- The statement with which a broker looks for work, once per poll interval. It returns the types with ready jobs and their
-- lowest rank (a loose index scan: one look-up per type). It returns the times of the next scheduled job, deadline, limit check
-- and expiry. It also returns when a schedule fires or waits for its jobs, when a bulk operation without an owner continues,
-- the settings version, whether a broker has expired, and two values that change if the database is replaced. Times are rounded
-- up, because a timer that fires early would find nothing due.
-- $1 floor for scheduled
WITH RECURSIVE types AS (
    (SELECT type_id, rank FROM howdah.ready ORDER BY type_id, rank, id LIMIT 1)
    UNION ALL
    SELECT n.type_id, n.rank FROM types t CROSS JOIN LATERAL (
        SELECT r.type_id, r.rank FROM howdah.ready r WHERE r.type_id > t.type_id
        ORDER BY r.type_id, r.rank, r.id LIMIT 1) n
)
SELECT (SELECT array_agg(type_id) FROM types) AS type_ids,
       (SELECT array_agg(rank) FROM types) AS ranks,
       (SELECT ceil(extract(epoch FROM run_at - now()) * 1000)::bigint FROM howdah.scheduled
        WHERE run_at >= coalesce($1::timestamptz, '-infinity') ORDER BY run_at, id LIMIT 1) AS due_in_ms,
       (SELECT ceil(extract(epoch FROM deadline - now()) * 1000)::bigint FROM howdah.leased
        WHERE deadline IS NOT NULL ORDER BY deadline LIMIT 1) AS deadline_in_ms,
       (SELECT ceil(extract(epoch FROM check_at - now()) * 1000)::bigint FROM howdah.limit_state
        WHERE check_at IS NOT NULL ORDER BY check_at LIMIT 1) AS limit_in_ms,
       (SELECT ceil(extract(epoch FROM expire_at - now()) * 1000)::bigint FROM howdah.expiry
        ORDER BY expire_at LIMIT 1) AS expiry_in_ms,
       (SELECT ceil(extract(epoch FROM next_at - now()) * 1000)::bigint FROM howdah.schedule
        WHERE next_at IS NOT NULL ORDER BY next_at LIMIT 1) AS schedule_in_ms,
       EXISTS (SELECT FROM howdah.schedule WHERE watching) AS schedule_watches,
       (SELECT ceil(extract(epoch FROM b.next_at - now()) * 1000)::bigint FROM howdah.bulk b
        WHERE b.state = 'running' AND (b.owner IS NULL OR NOT EXISTS (
            SELECT FROM howdah.broker o WHERE o.id = b.owner AND o.expires > now()))
        ORDER BY b.next_at LIMIT 1) AS bulk_in_ms,
       (SELECT version FROM howdah.settings) AS settings_version, now() AS now,
       (SELECT tableoid FROM howdah.settings) AS settings_table, pg_postmaster_start_time() AS server_started,
       EXISTS (SELECT FROM howdah.broker WHERE expires <= now()) AS broker_expired
