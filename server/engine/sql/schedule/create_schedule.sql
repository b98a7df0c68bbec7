-- Creates a schedule; returns no row if the name is taken. $1..$14 its definition $15..$28 its state $29 principal that creates
-- it (empty: authentication is off)
WITH created AS (
    INSERT INTO howdah.schedule (name, template, payload, task_type, period_ms, cron, time_zone, drift, overlap, missed,
                                 missed_limit, start_time, end_time, jitter_ms, paused, anchor, next_planned, next_at, held,
                                 watching, job_ids, last_planned, last_fired, last_job_id, fired, skipped, last_error, zone_offset_s)
    VALUES ($1::text, $2::text, $3::bytea, $4::text, $5::bigint, $6::text, $7::text, $8::text, $9::text, $10::text,
            $11::integer, $12::timestamptz, $13::timestamptz, $14::bigint, $15::boolean, $16::timestamptz, $17::timestamptz,
            $18::timestamptz, $19::timestamptz, $20::boolean, $21::bigint[], $22::timestamptz, $23::timestamptz, $24::bigint,
            $25::bigint, $26::bigint, $27::text, $28::integer)
    ON CONFLICT (name) DO NOTHING
    RETURNING *
),
creator AS (
    INSERT INTO howdah.schedule_creator (name, principal) SELECT created.name, $29::text FROM created WHERE $29::text <> ''
)
SELECT * FROM created
