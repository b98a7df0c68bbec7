-- Replaces all settings of a type. Increments the settings version, so that every broker reads the settings again. If the
-- priority step changes, sets step_changed, so that brokers change the ranks of the type's jobs to the new step
-- (maintain/rerank.rs).
-- $1 name, then the settings in the order of the columns
WITH bumped AS (UPDATE howdah.settings SET version = version + 1 RETURNING version),
stored AS (
    INSERT INTO howdah.task_type AS t (name,
        max_attempts,
        retry_policy,
        history,
        priority_step_us,
        timeout_ms,
        paused,
        max_payload_bytes,
        max_backlog,
        history_days,
        fallback,
        dead_days)
    SELECT $1::text,
        $2::smallint,
        $3::jsonb,
        $4::text,
        $5::bigint,
        $6::bigint,
        $7::boolean,
        $8::integer,
        $9::bigint,
        $10::smallint,
        $11::integer,
        $12::smallint
    FROM bumped
    ON CONFLICT (name) DO UPDATE SET
        max_attempts = excluded.max_attempts,
        retry_policy = excluded.retry_policy,
        history = excluded.history,
        priority_step_us = excluded.priority_step_us,
        timeout_ms = excluded.timeout_ms,
        paused = excluded.paused,
        max_payload_bytes = excluded.max_payload_bytes,
        max_backlog = excluded.max_backlog,
        history_days = excluded.history_days,
        fallback = excluded.fallback,
        dead_days = excluded.dead_days,
        step_changed = CASE WHEN t.priority_step_us IS DISTINCT FROM excluded.priority_step_us THEN now()
                            ELSE t.step_changed END
    RETURNING id, step_changed
),
-- Delete the last ranks of fair keys, because they have the old step. Each fair key then starts at the current rank.
shares AS (
    DELETE FROM howdah.fair_share
    WHERE type_id = (SELECT id FROM stored WHERE step_changed = now()) AND priority <> 0
)
SELECT version FROM bumped WHERE EXISTS (SELECT FROM stored)
