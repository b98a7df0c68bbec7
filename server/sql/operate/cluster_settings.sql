-- The settings of the cluster, and whether the store is closed to new jobs. Intervals become ms: a driver has no type for them.
SELECT version, payload_bytes, headers, header_bytes, key_bytes, batch, task_types,
       (extract(epoch FROM max_delay) * 1000)::bigint AS max_delay_ms,
       (extract(epoch FROM max_timeout) * 1000)::bigint AS max_timeout_ms,
       closed, closed_name, closed_by
FROM howdah.settings
