-- Returns the settings of the cluster, and whether the store is closed to new jobs. Intervals are returned in ms, because the
-- driver has no type for intervals.
SELECT version, payload_bytes, headers, header_bytes, key_bytes, batch, task_types, coalesce(dead_days, 0) AS dead_days,
       (extract(epoch FROM max_delay) * 1000)::bigint AS max_delay_ms,
       (extract(epoch FROM max_timeout) * 1000)::bigint AS max_timeout_ms,
       closed, closed_name, closed_by
FROM howdah.settings
