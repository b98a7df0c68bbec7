-- Retries jobs: scheduled and dead jobs become ready now, or scheduled for a later time. A scheduled job keeps its remaining
-- attempts. A dead job gets all attempts again; it has started before, so it does not expire. Errors are kept. A dead job takes
-- its key again; if another job has the key, it stays dead. Of several jobs with the same key, the oldest takes it. A key that
-- was held until a time is free when that time has passed. Jobs with the mark `coordinated` (with a limit key, for example)
-- always go to scheduled, and howdah.promote_coordinated decides whether they must wait. Rows are locked in the order of ids,
-- so that two calls cannot deadlock.
-- $1 id[] $2 run_at, µs after 1970 $3 delay_ms (both null: now) $4 also scheduled jobs $5 also dead jobs $6 payload (null:
-- unchanged) $7 only jobs that failed before $8 only of these types (null: of any)
WITH clock AS MATERIALIZED (
    SELECT now() AS now, coalesce(to_timestamp($2::bigint / 1000000.0), now() + $3::bigint * interval '1 millisecond', now()) AS run_at
),
from_scheduled AS (
    DELETE FROM howdah.scheduled WHERE id = ANY (ARRAY(
        SELECT id FROM howdah.scheduled
        WHERE $4::boolean AND id = ANY ($1::bigint[]) AND (failures IS NOT NULL OR NOT $7::boolean)
              AND ($8::integer[] IS NULL OR type_id = ANY ($8::integer[])) ORDER BY id FOR UPDATE))
    RETURNING *
),
found_dead AS MATERIALIZED (
    SELECT id, coalesce((options ->> 'key_type')::integer, type_id) AS type_id, key FROM howdah.dead d
    WHERE $5::boolean AND id = ANY ($1::bigint[]) AND ($8::integer[] IS NULL OR d.type_id = ANY ($8::integer[])) ORDER BY id FOR UPDATE
),
keyed AS (
    INSERT INTO howdah.job_key AS k (type_id, key, job_id)
    SELECT DISTINCT ON (type_id, key) type_id, key, id FROM found_dead WHERE key IS NOT NULL ORDER BY type_id, key, id
    ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id, version = NULL, held_until = NULL, debounce_until = NULL
    WHERE k.held_until <= now() AND k.next_id IS NULL
    RETURNING job_id
),
from_dead AS (
    DELETE FROM howdah.dead WHERE id = ANY (ARRAY(
        SELECT id FROM found_dead WHERE key IS NULL
        UNION ALL SELECT job_id FROM keyed
        -- The job itself still holds its key until a time. OFFSET 0 forces a look-up by the primary key: Postgres may otherwise
        -- use the index of all keys that are held until a time.
        UNION ALL SELECT d.id FROM found_dead d CROSS JOIN LATERAL (
            SELECT FROM howdah.job_key k
            WHERE k.type_id = d.type_id AND k.key = d.key AND k.job_id = d.id AND k.held_until > now() OFFSET 0) held))
    RETURNING *
),
deleted AS MATERIALIZED (
    -- The old start time is removed, because it would delay the retried job.
    SELECT id, created, timeout_ms, last_token, leased_at, type_id, attempt, max_attempts, priority, key, headers,
           nullif(options - 'start_us', '{}') AS options, failures, payload FROM from_scheduled
    UNION ALL SELECT id, created, timeout_ms, last_token, leased_at, type_id, 0, max_attempts, priority, key, headers,
           nullif(options - 'expire_at_us' - 'start_us', '{}'), failures, payload FROM from_dead
),
-- A new payload is stored in the row of the job, whatever its size; a payload that was stored out of line is deleted.
moved AS MATERIALIZED (
    SELECT deleted.*, run_at, run_at > now OR options -> 'coordinated' IS NOT NULL AS later,
           priority * howdah.rank_step(type_id) + (extract(epoch FROM run_at) * 1000000)::bigint AS rank,
           howdah.with_step(CASE WHEN $6::bytea IS NULL THEN options ELSE nullif(options - 'payload_bytes', '{}') END,
                            priority, howdah.rank_step(type_id)) AS new_options,
           coalesce($6, payload) AS new_payload
    FROM deleted CROSS JOIN (SELECT now, greatest(run_at, now) AS run_at FROM clock) c
),
out_of_line AS (
    DELETE FROM howdah.payload WHERE $6::bytea IS NOT NULL AND id = ANY (ARRAY(SELECT id FROM deleted))
),
to_ready AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
                              headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
           new_options, failures, new_payload
    FROM moved WHERE NOT later
),
to_scheduled AS (
    INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt,
                                  max_attempts, priority, key, headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts, priority, key,
           headers, new_options, failures, new_payload
    FROM moved WHERE later
)
SELECT id, type_id, CASE WHEN NOT later THEN rank END AS rank, false AS key_held,
       (extract(epoch FROM run_at - now()) * 1000)::bigint AS due_in_ms, options -> 'coordinated' IS NOT NULL AS coordinated
FROM moved
UNION ALL
SELECT id, type_id, NULL, true, 0, false FROM found_dead WHERE id NOT IN (SELECT id FROM from_dead)
