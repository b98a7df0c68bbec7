-- Changes settings of the cluster; null leaves a setting unchanged. Increments the version, so that every broker reads the
-- settings again. justify_hours makes errors of SQL functions say 30 days instead of 720 hours.
-- $1 payload_bytes $2 headers $3 header_bytes $4 key_bytes $5 batch $6 max_delay in ms $7 max_timeout in ms $8 task_types
-- $9 dead_days (0: dead jobs are kept)
UPDATE howdah.settings SET
    version = version + 1,
    payload_bytes = coalesce($1::integer, payload_bytes),
    headers = coalesce($2::integer, headers),
    header_bytes = coalesce($3::integer, header_bytes),
    key_bytes = coalesce($4::integer, key_bytes),
    batch = coalesce($5::integer, batch),
    max_delay = coalesce(justify_hours($6::bigint * interval '1 millisecond'), max_delay),
    max_timeout = coalesce(justify_hours($7::bigint * interval '1 millisecond'), max_timeout),
    task_types = coalesce($8::integer, task_types),
    dead_days = nullif(coalesce($9::integer, dead_days), 0)
RETURNING version, payload_bytes, headers, header_bytes, key_bytes, batch, task_types, coalesce(dead_days, 0) AS dead_days,
          (extract(epoch FROM max_delay) * 1000)::bigint AS max_delay_ms,
          (extract(epoch FROM max_timeout) * 1000)::bigint AS max_timeout_ms
