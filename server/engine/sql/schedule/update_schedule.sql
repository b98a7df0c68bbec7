-- Saves the definition and the state of a schedule. The caller has locked the row. Parameters as in create_schedule.
UPDATE howdah.schedule
SET template = $2::text, payload = $3::bytea, task_type = $4::text, period_ms = $5::bigint, cron = $6::text,
    time_zone = $7::text, drift = $8::text, overlap = $9::text, missed = $10::text, missed_limit = $11::integer,
    start_time = $12::timestamptz, end_time = $13::timestamptz, jitter_ms = $14::bigint, updated = now(),
    paused = $15::boolean, anchor = $16::timestamptz, next_planned = $17::timestamptz, next_at = $18::timestamptz,
    held = $19::timestamptz, watching = $20::boolean, job_ids = $21::bigint[], last_planned = $22::timestamptz,
    last_fired = $23::timestamptz, last_job_id = $24::bigint, fired = $25::bigint, skipped = $26::bigint,
    last_error = $27::text, zone_offset_s = $28::integer
WHERE name = $1::text
RETURNING *
