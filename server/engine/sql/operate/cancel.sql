-- Cancels jobs: moves them from any state to history. A job that moves between two tables meanwhile is missed, so the caller
-- searches missing jobs again. For jobs with the mark `coordinated` (their end affects other jobs), the caller runs after_end
-- in the same transaction.
-- $1 id[] $2 only in these states (null: in any) $3 only of these types (null: of any)
WITH from_ready AS (DELETE FROM howdah.ready WHERE id = ANY ($1::bigint[])
    AND ($2::text[] IS NULL OR 'ready' = ANY ($2::text[])) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[])) RETURNING *),
from_leased AS (DELETE FROM howdah.leased WHERE id = ANY ($1::bigint[])
    AND ($2::text[] IS NULL OR 'leased' = ANY ($2::text[])) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[])) RETURNING *),
from_scheduled AS (DELETE FROM howdah.scheduled WHERE id = ANY ($1::bigint[])
    AND ($2::text[] IS NULL OR 'scheduled' = ANY ($2::text[])) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[])) RETURNING *),
from_waiting AS (DELETE FROM howdah.waiting WHERE id = ANY ($1::bigint[])
    AND ($2::text[] IS NULL OR 'waiting' = ANY ($2::text[])) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[])) RETURNING *),
from_dead AS (DELETE FROM howdah.dead WHERE id = ANY ($1::bigint[])
    AND ($2::text[] IS NULL OR 'dead' = ANY ($2::text[])) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[])) RETURNING *),
deleted AS MATERIALIZED (
    SELECT id, created, NULL::timestamptz AS leased_at, NULL::bigint AS token, NULL::integer AS broker_id, type_id,
           attempt, max_attempts, priority, key, headers, options, failures, payload FROM from_ready
    UNION ALL SELECT id, created, leased_at, token, broker_id, type_id,
           attempt, max_attempts, priority, key, headers, options, failures, payload FROM from_leased
    UNION ALL SELECT id, created, leased_at, NULL, NULL, type_id,
           attempt, max_attempts, priority, key, headers, options, failures, payload FROM from_scheduled
    UNION ALL SELECT id, created, NULL, NULL, NULL, type_id,
           attempt, max_attempts, priority, key, headers, options, failures, payload FROM from_waiting
    UNION ALL SELECT id, created, leased_at, NULL, NULL, type_id,
           attempt, max_attempts, priority, key, headers, options, failures, payload FROM from_dead
),
unkeyed AS (
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM deleted g CROSS JOIN LATERAL (
            SELECT j.ctid FROM howdah.job_key j
            WHERE j.type_id = g.type_id AND j.key = g.key AND j.job_id = g.id AND j.held_until IS NULL
            OFFSET 0) k
        WHERE g.key IS NOT NULL AND g.options -> 'coordinated' IS NULL))
),
-- Delete the dependencies of cancelled jobs, because they no longer wait for other jobs.
dependencies AS (
    DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM from_waiting))
),
-- Do not store the lease's token: a late ack must be answered LEASE_LOST, and not OK as a repeat.
kept AS (
    INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority,
                                key, headers, options, failures, payload)
    SELECT id, created, leased_at, now(), type_id, 'cancelled', attempt, max_attempts, priority, key, headers, options,
           failures, payload
    FROM deleted
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, cancelled) SELECT type_id, count(*) FROM deleted GROUP BY type_id
)
SELECT id, token, broker_id, type_id, key, CASE WHEN token IS NOT NULL THEN leased_at END AS attempt_start,
       CASE WHEN options -> 'coordinated' IS NOT NULL THEN options END AS coordinated_options
FROM deleted
