-- Releases the leases of brokers that have expired. The jobs are ready again at their old rank (with the current step of the
-- type). If their attempts are used up, they go to their fallback or are dead. The attempt counts, because the job may have
-- killed its worker. Until the job is delivered again, a late outcome of its worker still counts (howdah.regain). The statement
-- scans the leases, but it runs rarely, and windows bound their number. Jobs with the mark `coordinated` (their end affects
-- other jobs) are left to lost_coordinated.sql.
-- A broker whose own row has expired (it was paused or cut off) rescues no leases before it has registered again, because the
-- other brokers may have been cut off in the same way. If a key is locked, the broker repeats the call with $3 false. Then jobs
-- whose end frees a key are left to lost_coordinated.sql.
-- $1 at most $2 the broker that asks $3 also jobs whose end frees a key
WITH lost AS (
    SELECT ctid FROM howdah.leased
    WHERE broker_id IS NOT NULL AND options -> 'coordinated' IS NULL
      AND broker_id NOT IN (SELECT id FROM howdah.broker WHERE expires > now())
      AND EXISTS (SELECT FROM howdah.broker WHERE id = $2::integer AND expires > now())
      AND ($3::boolean OR key IS NULL OR attempt < max_attempts)
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM howdah.leased WHERE ctid = ANY (ARRAY(SELECT ctid FROM lost)) RETURNING *
),
failed AS MATERIALIZED (
    SELECT deleted.*, howdah.reranked(rank, priority, options, priority, step) AS same_rank,
           howdah.with_step(options, priority, step) AS step_options, howdah.add_failure(failures, attempt,
               'the worker or its broker was lost while the job ran', leased_at) AS all_failures,
           CASE WHEN attempt >= max_attempts THEN howdah.fallback_of(type_id, options) END AS fallback_id
    FROM deleted CROSS JOIN LATERAL (
        SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = deleted.type_id),
                        howdah.default_step()) AS step OFFSET 0) s
),
to_ready AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
                              headers, options, failures, payload)
    SELECT id, same_rank, created, timeout_ms, token # 6, type_id, attempt, max_attempts, priority, key, headers,
           step_options, all_failures, payload
    FROM failed WHERE attempt < max_attempts
),
to_fallback AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                              headers, options, failures, payload)
    SELECT id, priority * howdah.rank_step(fallback_id) + (extract(epoch FROM now()) * 1000000)::bigint, created, timeout_ms, last_token,
           fallback_id, 0,
           coalesce((SELECT t.max_attempts FROM howdah.task_type t WHERE t.id = fallback_id), max_attempts),
           priority, headers,
           howdah.with_step(howdah.in_fallback(options, type_id), priority, howdah.rank_step(fallback_id)),
           all_failures, payload
    FROM failed WHERE fallback_id IS NOT NULL
),
to_dead AS (
    INSERT INTO howdah.dead (id, rank, created, timeout_ms, last_token, leased_at, died, type_id, attempt, max_attempts,
                             priority, key, headers, options, failures, payload)
    SELECT id, same_rank, created, timeout_ms, token # 6, leased_at, now(), type_id, attempt, max_attempts, priority, key,
           headers, step_options, all_failures, payload
    FROM failed WHERE attempt >= max_attempts AND fallback_id IS NULL
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, failed, dead, wait_us, wait_bucket, run_us, run_bucket)
    SELECT type_id, count(*), nullif(count(*) FILTER (WHERE is_dead), 0), sum(wait_us), howdah.duration_bucket(wait_us),
           sum(run_us), howdah.duration_bucket(run_us)
    FROM (SELECT type_id, attempt >= max_attempts AND fallback_id IS NULL AS is_dead,
                 howdah.waited_us(rank, priority, options, created, leased_at) AS wait_us, howdah.ran_us(leased_at) AS run_us
          FROM failed) a
    GROUP BY type_id, howdah.duration_bucket(wait_us), howdah.duration_bucket(run_us)
),
counted_fallback AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT fallback_id, count(*) FROM failed WHERE fallback_id IS NOT NULL GROUP BY fallback_id
),
unkeyed AS (
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM failed g CROSS JOIN LATERAL (
            SELECT j.ctid FROM howdah.job_key j
            WHERE j.type_id = g.type_id AND j.key = g.key AND j.job_id = g.id AND j.held_until IS NULL
            OFFSET 0) k
        WHERE g.key IS NOT NULL AND g.attempt >= g.max_attempts))
)
-- The broker starts its next claim of the type at this rank, so the rank must not be too high. Jobs that went to their fallback
-- have higher ranks.
SELECT coalesce(fallback_id, type_id) AS type_id, min(same_rank) AS lowest_rank, count(*) AS jobs,
       count(howdah.index_tags(id, fallback_id, options)) FILTER (WHERE fallback_id IS NOT NULL AND options ? 'tags') AS tagged
FROM failed GROUP BY 1
