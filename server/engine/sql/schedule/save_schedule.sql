-- Saves the state of a schedule. The caller has locked the row. $1 name $2..$15 the state, in the order of create_schedule
UPDATE howdah.schedule
SET paused = $2::boolean, anchor = $3::timestamptz, next_planned = $4::timestamptz, next_at = $5::timestamptz,
    held = $6::timestamptz, watching = $7::boolean, job_ids = $8::bigint[], last_planned = $9::timestamptz,
    last_fired = $10::timestamptz, last_job_id = $11::bigint, fired = $12::bigint, skipped = $13::bigint,
    last_error = $14::text, zone_offset_s = $15::integer
WHERE name = $1::text
RETURNING *
