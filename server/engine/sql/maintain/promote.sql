-- Makes scheduled jobs that are due ready. Jobs with the mark `coordinated`, which may have to wait for a limit, are left to
-- howdah.promote_coordinated. The scan starts at the floor, a time before which no scheduled job is left, to skip the dead rows
-- of promoted jobs (see claim.sql). Once a minute the floor is null, for a full scan, which finds rows that became visible
-- late. $1 floor $2 at most
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
