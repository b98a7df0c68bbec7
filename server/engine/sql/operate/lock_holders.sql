-- Returns the backends that hold locks for which a statement of a side lane waits. The backends of the side lane are found by
-- its application_name ($1). Prepared transactions have no backend: their pid is 0. A name is empty if it is not known.
SELECT DISTINCT b.pid, coalesce(a.application_name, '') AS application_name,
       coalesce((extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint, 0) AS open_ms,
       coalesce((SELECT l.relation::regclass::text FROM pg_locks l
                 WHERE l.pid = w.pid AND NOT l.granted AND l.relation IS NOT NULL LIMIT 1), '') AS relation
FROM pg_stat_activity w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
LEFT JOIN pg_stat_activity a ON a.pid = b.pid
-- Compare the database too, because one process may use several databases with the same application_name.
WHERE w.application_name = $1::text AND w.datname = current_database() AND w.wait_event_type = 'Lock'
ORDER BY 1 LIMIT 4
