-- Returns a page of schedules by name, without payloads. $1 name after $2 at most $3 bytes at most (but at least one schedule)
WITH page AS (
    SELECT *, sum(octet_length(template) + 500) OVER (ORDER BY name) - octet_length(template) - 500 AS bytes_before
    FROM (SELECT * FROM howdah.schedule WHERE name > $1::text ORDER BY name LIMIT $2::integer) s
)
SELECT name, template, ''::bytea AS payload, task_type, period_ms, cron, time_zone, drift, overlap, missed, missed_limit,
       start_time, end_time, jitter_ms, created, updated, paused, anchor, next_planned, next_at, held, watching, job_ids,
       last_planned, last_fired, last_job_id, fired, skipped, last_error, zone_offset_s,
       (SELECT count(*) FROM page) AS page_rows
FROM page WHERE bytes_before < $3::bigint ORDER BY name
