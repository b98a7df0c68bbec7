-- Makes scheduled jobs that are due ready; coordinated ones are left to promote_coordinated. The scan starts at the floor and
-- so skips the dead rows of jobs that were promoted before (see claim.sql). Once a minute a full scan starts at null. $1 floor $2 at most
WITH due AS (
    SELECT ctid FROM howdah.scheduled
    WHERE run_at <= now() AND run_at >= coalesce($1::timestamptz, '-infinity')
      AND options -> 'coordinated' IS NULL
    ORDER BY run_at, id LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM howdah.scheduled WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING *
),
moved AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts,
                              priority, key, headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
           options, failures, payload
    FROM deleted
    RETURNING type_id, rank
)
SELECT type_id, min(rank) AS lowest_rank, count(*) AS jobs, now() - interval '1 minute' AS next_floor
FROM moved GROUP BY type_id
