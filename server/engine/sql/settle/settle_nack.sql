-- Ends leases in any way but an ack (howdah.settle_action). If no attempts are left, a retry and the loss of a worker make the
-- job dead. A snooze and a release do not count the attempt. A retry without a delay, and the jobs of a lost worker, go to
-- ready at once. A job that would die goes to its fallback if it has one. Ranks are computed with the type's current step, not
-- with the step at the time of the lease. ids ($1) must be sorted and unique (see settle_ack.sql). With owners ($6: a broker's
-- number, and its former numbers) only leases of these numbers are ended, so a lease that another broker has adopted is left
-- alone. Owner 0 means pulled leases, which have no broker. $7: only leases whose deadline has passed. $8: also jobs with the
-- mark `coordinated` (their end affects other jobs); the caller then runs after_end and requeue_for_limit in the same
-- transaction. $9: on behalf of an operator; the token is forgotten, so a later outcome of the worker is refused.
-- $1 id[] $2 token[] $3 action[] $4 delay_ms[] $5 error[] $6 owner[] $7 expired only $8 coordinated too $9 by an operator
-- $10 details and places of errors: JSON objects (null: none)
WITH deleted AS (
    DELETE FROM howdah.leased
    WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND ($6::integer[] IS NULL OR coalesce(broker_id, 0) = ANY ($6))
      AND (NOT $7::boolean OR deadline <= now())
      AND ($8::boolean OR options -> 'coordinated' IS NULL)
    RETURNING *
),
judged AS (
    SELECT deleted.*, howdah.reranked(rank, priority, options, priority, step) AS same_rank,
           -- A job that has started an attempt no longer expires. A snoozed attempt does not count, so the job would look
           -- unstarted: remove its expiry.
           howdah.with_step(CASE WHEN action = 'snooze' AND options -> 'expire_at_us' IS NOT NULL THEN options - 'expire_at_us' ELSE options END,
                            priority, step) AS step_options, step,
           ($4::bigint[])[width_bucket(id, $1::bigint[])] AS delay_ms,
           CASE WHEN action IN ('retry', 'lost') AND attempt >= max_attempts THEN 'dead' ELSE action END AS verdict,
           CASE WHEN action IN ('snooze', 'release') THEN attempt - 1 ELSE attempt END AS attempts,
           CASE WHEN action IN ('snooze', 'release') THEN failures WHEN $10::jsonb[] IS NULL
                THEN howdah.add_failure(failures, attempt, ($5::text[])[width_bucket(id, $1::bigint[])], leased_at)
                ELSE howdah.add_worker_failure(
               failures, attempt, ($5::text[])[width_bucket(id, $1::bigint[])], leased_at,
               ($10::jsonb[])[width_bucket(id, $1::bigint[])]) END AS all_failures,
           -- The token with the code of the outcome, so that only a repeat of the worker's own outcome is answered OK. A lease
           -- that a broker ended is lost for the worker. Code 5 tells the worker's broker of a timeout (ended_leases.sql).
           CASE WHEN $9::boolean THEN NULL
                WHEN $7::boolean THEN token # 5
                WHEN $6::integer[] IS NULL
                THEN token # CASE action WHEN 'retry' THEN 1 WHEN 'dead' THEN 2 WHEN 'snooze' THEN 3 ELSE 4 END
                -- The outcome of a lost worker counts until the job is delivered again (howdah.regain).
                WHEN action = 'lost' THEN token # 6
                ELSE last_token END AS settled_token,
           (extract(epoch FROM now()) * 1000000)::bigint AS now_us
    FROM deleted CROSS JOIN LATERAL (SELECT ($3::text[])[width_bucket(deleted.id, $1::bigint[])]::howdah.settle_action AS action) a
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = deleted.type_id),
                        howdah.default_step()) AS step OFFSET 0) s
),
settled AS MATERIALIZED (
    SELECT *, CASE WHEN fallback_id IS NULL THEN verdict ELSE 'fallback' END AS action
    FROM (SELECT *, CASE WHEN verdict = 'dead' THEN howdah.fallback_of(type_id, options) END AS fallback_id
          FROM judged OFFSET 0) j
),
to_ready AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts,
                              priority, key, headers, options, failures, payload)
    SELECT id, CASE WHEN action IN ('release', 'lost') THEN same_rank ELSE priority * step + now_us END, created,
           timeout_ms, settled_token, type_id, attempts, max_attempts, priority, key, headers, step_options, all_failures,
           payload
    FROM settled WHERE action IN ('release', 'lost') OR (action IN ('retry', 'snooze') AND delay_ms <= 0)
    RETURNING id, rank
),
to_fallback AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts,
                              priority, headers, options, failures, payload)
    SELECT id, priority * howdah.rank_step(fallback_id) + now_us, created, timeout_ms, settled_token, fallback_id, 0,
           coalesce((SELECT t.max_attempts FROM howdah.task_type t WHERE t.id = fallback_id), max_attempts),
           priority, headers,
           howdah.with_step(howdah.in_fallback(options, type_id), priority, howdah.rank_step(fallback_id)),
           all_failures, payload
    FROM settled WHERE action = 'fallback'
    RETURNING id, rank
),
to_scheduled AS (
    INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id,
                                  attempt, max_attempts, priority, key, headers, options, failures, payload)
    SELECT id, priority * step + now_us + delay_ms * 1000, created, timeout_ms, settled_token,
           now() + delay_ms * interval '1 millisecond', leased_at, type_id, attempts, max_attempts, priority,
           key, headers, step_options, all_failures, payload
    FROM settled WHERE action IN ('retry', 'snooze') AND delay_ms > 0
),
to_dead AS (
    INSERT INTO howdah.dead (id, rank, created, timeout_ms, last_token, leased_at, died, type_id, attempt,
                             max_attempts, priority, key, headers, options, failures, payload)
    SELECT id, same_rank, created, timeout_ms, settled_token, leased_at, now(), type_id, attempts, max_attempts, priority,
           key, headers, step_options, all_failures, payload
    FROM settled WHERE action = 'dead'
),
-- Attempts that ended by snooze or release are not counted. A job that goes to its fallback counts as enqueued in that type.
counted AS (
    INSERT INTO howdah.statistics_change (type_id, failed, dead, wait_us, wait_bucket, run_us, run_bucket)
    SELECT type_id, count(*), nullif(count(*) FILTER (WHERE action = 'dead'), 0), sum(wait_us), howdah.duration_bucket(wait_us),
           sum(run_us), howdah.duration_bucket(run_us)
    FROM (SELECT type_id, action, howdah.waited_us(rank, priority, options, created, leased_at) AS wait_us,
                 howdah.ran_us(leased_at) AS run_us
          FROM settled WHERE action NOT IN ('snooze', 'release')) a
    GROUP BY type_id, howdah.duration_bucket(wait_us), howdah.duration_bucket(run_us)
),
counted_fallback AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT fallback_id, count(*) FROM settled WHERE action = 'fallback' GROUP BY fallback_id
),
unkeyed AS (
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM settled g CROSS JOIN LATERAL (
            SELECT j.ctid FROM howdah.job_key j
            WHERE j.type_id = g.type_id AND j.key = g.key AND j.job_id = g.id AND j.held_until IS NULL
            OFFSET 0) k
        WHERE g.key IS NOT NULL AND g.action IN ('dead', 'fallback') AND g.options -> 'coordinated' IS NULL))
)
SELECT s.id, coalesce(s.fallback_id, s.type_id) AS type_id, s.action::text AS action, s.delay_ms, s.broker_id,
       r.rank, s.type_id AS left_type, s.key, s.limited IS TRUE AS limited,
       CASE WHEN s.options -> 'coordinated' IS NOT NULL THEN s.options END AS coordinated_options,
       CASE WHEN s.options -> 'coordinated' IS NOT NULL THEN s.leased_at END AS coordinated_leased_at,
       -- Makes jobs that went to their fallback searchable by tag in that type. A function call, because it costs nothing if no
       -- such job exists, while an INSERT in this statement would cost each execution.
       CASE WHEN s.action = 'fallback' AND s.options ? 'tags' THEN howdah.index_tags(s.id, s.fallback_id, s.options) END AS tagged
FROM settled s LEFT JOIN (SELECT * FROM to_ready UNION ALL SELECT * FROM to_fallback) r USING (id)
