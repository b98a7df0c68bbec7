-- Functions that end attempts.

-- Restores leases that a broker ended because it had lost the worker, so that a late outcome still counts. The jobs must not
-- have been delivered again or changed by an operator since. The attempt continues as if the lease had not ended, and the error
-- that the end added is removed. A lease is restored only if the job's last_token is token XOR 6 (worker lost). The next
-- delivery, or a change of the type or state, removes this value. A dead job takes its key again, but stays dead if another job
-- holds the key. Jobs that were cancelled because the dead job died are restored. The restored lease has no broker, like the
-- lease of a pulled job, and a deadline of at least a minute; the caller settles it at once. ids must be sorted and unique.
-- Returns the ids of the restored jobs.
CREATE OR REPLACE FUNCTION howdah.regain(ids bigint[], tokens bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    dead_ids bigint[];
BEGIN
    WITH found AS MATERIALIZED (
        SELECT d.id, coalesce((d.options ->> 'key_type')::integer, d.type_id) AS key_type, d.key FROM howdah.dead d
        WHERE d.id = ANY (ids) AND d.last_token = tokens[width_bucket(d.id, ids)] # 6 AND d.attempt > 0 ORDER BY d.id FOR UPDATE
    ),
    keyed AS (
        INSERT INTO howdah.job_key AS k (type_id, key, job_id)
        SELECT DISTINCT ON (f.key_type, f.key) f.key_type, f.key, f.id FROM found f WHERE f.key IS NOT NULL ORDER BY 1, 2, 3
        ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id,
            held_until = CASE WHEN k.job_id = excluded.job_id THEN k.held_until END, version = NULL, debounce_until = NULL
        WHERE k.next_id IS NULL AND (k.held_until <= now() OR k.job_id = excluded.job_id)
        RETURNING job_id
    )
    SELECT array_agg(f.id ORDER BY f.id) INTO dead_ids FROM found f WHERE f.key IS NULL OR f.id IN (SELECT k.job_id FROM keyed k);
    RETURN QUERY
    WITH from_ready AS (
        DELETE FROM howdah.ready WHERE id = ANY (ids) AND last_token = tokens[width_bucket(id, ids)] # 6 AND attempt > 0 RETURNING *
    ),
    from_waiting AS (
        -- IS TRUE keeps Postgres from using the index of jobs with a limit key, so that it looks up jobs by id.
        DELETE FROM howdah.waiting
        WHERE id = ANY (ids) AND last_token = tokens[width_bucket(id, ids)] # 6 AND (attempt > 0 AND limit_key IS NOT NULL) IS TRUE RETURNING *
    ),
    from_dead AS (DELETE FROM howdah.dead WHERE id = ANY (dead_ids) RETURNING *),
    deleted AS (
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options, failures, payload
        FROM from_ready
        UNION ALL SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options,
                         failures, payload FROM from_waiting
        UNION ALL SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options,
                         failures, payload FROM from_dead
    )
    INSERT INTO howdah.leased (id, rank, created, timeout_ms, token, leased_at, deadline, broker_id, type_id, attempt, max_attempts,
                               priority, key, headers, options, failures, payload, limited)
    SELECT d.id, d.rank, d.created, d.timeout_ms, d.last_token # 6, f.started,
           greatest(f.started + d.timeout_ms * interval '1 millisecond', now() + interval '1 minute'), NULL, d.type_id, d.attempt, greatest(d.max_attempts, d.attempt), d.priority, d.key, d.headers, d.options,
           nullif(d.failures - (-1), '[]'), d.payload,
           (SELECT true FROM howdah.task_type t
            WHERE t.id = d.type_id AND num_nonnulls(t.max_running, t.rate_per_s, t.brake_failures) > 0)
    FROM deleted d
    CROSS JOIN LATERAL (SELECT coalesce((d.failures -> -1 ->> 'started')::timestamptz, now()) AS started) f
    RETURNING leased.id;
    IF dead_ids IS NOT NULL THEN
        PERFORM howdah.revive_dependents(dead_ids);
    END IF;
END $$;

-- Acks jobs, also those with the mark `coordinated`: moves them to their next stage or to history, and calls after_end. ids
-- must be sorted and unique. next_types: for each job, a type that the worker names instead of the planned next stage, or null.
-- Result rows with a kind are wake-ups. A row with a null kind is the result of one job: its id, and its type if the lease
-- counted towards a limit of the type.
CREATE OR REPLACE FUNCTION howdah.ack_coordinated(ids bigint[], tokens bigint[], results bytea[], next_types integer[])
RETURNS TABLE (kind howdah.wakeup_kind, id bigint, type_id integer, rank bigint, jobs bigint, in_us bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    deleted howdah.leased[];
    late howdah.leased[];
    onward howdah.waiting[];
    ended bigint[];
BEGIN
    WITH g AS (
        DELETE FROM howdah.leased l
        WHERE l.id = ANY (ids) AND l.token = tokens[width_bucket(l.id, ids)]
        RETURNING l.*
    )
    SELECT array_agg(g::howdah.leased) INTO deleted FROM g;
    IF coalesce(cardinality(deleted), 0) < cardinality(ids) AND EXISTS (SELECT FROM howdah.regain(ids, tokens)) THEN
        WITH g AS (
            DELETE FROM howdah.leased l
            WHERE l.id = ANY (ids) AND l.token = tokens[width_bucket(l.id, ids)]
            RETURNING l.*
        )
        SELECT array_agg(g::howdah.leased) INTO late FROM g;
        deleted := deleted || late;
    END IF;
    IF deleted IS NULL THEN
        RETURN;
    END IF;

    PERFORM howdah.count_attempts(deleted, false, false);

    WITH next AS (
        SELECT g.*, results[width_bucket(g.id, ids)] AS result,
               coalesce(next_types[width_bucket(g.id, ids)], (g.options -> 'next_stages' -> 0)::integer) AS next_type
        FROM unnest(deleted) g
    )
    SELECT array_agg(ROW(n.id, n.priority * howdah.rank_step(n.next_type) + now_us, n.created, n.timeout_ms, n.token,
               n.next_type, 0, n.max_attempts, n.priority, n.key, NULL, n.headers,
               howdah.with_step(howdah.next_stage(n.options, n.next_type, n.type_id, n.attempt, n.leased_at), n.priority,
                                howdah.rank_step(n.next_type)),
               n.failures,
               -- The next stage gets the result as its payload by default, also if the worker adds a stage to a job without
               -- stages.
               CASE WHEN coalesce(n.options ->> 'stage_payload', 'result') = 'result' THEN coalesce(n.result, '') ELSE n.payload END
           )::howdah.waiting)
    INTO onward
    FROM next n WHERE n.next_type IS NOT NULL;
    IF onward IS NOT NULL THEN
        PERFORM howdah.count_enqueued(ARRAY(SELECT o.type_id FROM unnest(onward) o));
        PERFORM howdah.index_tags(o.id, o.type_id, o.options) FROM unnest(onward) o WHERE o.options ? 'tags';
    END IF;

    SELECT array_agg(g.id) INTO ended FROM unnest(deleted) g
    WHERE NOT EXISTS (SELECT FROM unnest(onward) o WHERE o.id = g.id);
    INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts, priority,
                                key, headers, options, failures, payload, result)
    SELECT g.id, g.created, g.leased_at, now(), g.token, g.type_id, 'succeeded', g.attempt, g.max_attempts, g.priority, g.key, g.headers,
           g.options, g.failures, g.payload, r.result
    FROM unnest(deleted) g JOIN howdah.task_type t ON t.id = g.type_id
    CROSS JOIN LATERAL (SELECT results[width_bucket(g.id, ids)] AS result) r
    WHERE g.id = ANY (ended) AND howdah.keeps_history(coalesce(g.options ->> 'history', t.history), g.failures, r.result);

    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs, x.in_us FROM howdah.route(onward) x;
    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs, x.in_us
    FROM (
        SELECT array_agg(g.id) AS ids, array_agg(g.type_id) AS type_ids, array_agg(g.key) AS keys,
               array_agg(coalesce(g.options, '{}')) AS options,
               array_agg(CASE WHEN g.id = ANY (ended) THEN 'succeeded' ELSE 'moved' END::howdah.ending) AS endings,
               array_agg(g.leased_at) AS starts
        FROM unnest(deleted) g
    ) e, LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.endings, e.starts) x;
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, g.id, CASE WHEN g.limited THEN g.type_id END, NULL::bigint, NULL::bigint, NULL::bigint
                 FROM unnest(deleted) g;
END $$;

-- Returns the delay after a failed attempt, by the retry policy of the job, else of its type, else the default policy
-- (server/core/src/job/retry.rs).
CREATE OR REPLACE FUNCTION howdah.retry_delay_ms(of_type integer, options jsonb, attempt integer) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (planned * (1 + jitter * (2 * random() - 1)))::bigint FROM (
        SELECT (p ->> 'jitter')::float8 AS jitter, CASE p ->> 'kind'
            WHEN 'linear' THEN least((p ->> 'initial_delay_ms')::float8 * attempt, (p ->> 'max_delay_ms')::float8)
            WHEN 'fixed' THEN (p ->> 'initial_delay_ms')::float8
            WHEN 'list' THEN coalesce((p -> 'delays_ms' ->> least(attempt, jsonb_array_length(p -> 'delays_ms')) - 1)::float8,
                                      (p ->> 'initial_delay_ms')::float8)
            -- The exponent is bounded, because Postgres raises an error when exp() overflows.
            ELSE least((p ->> 'initial_delay_ms')::float8 * exp(least(ln((p ->> 'multiplier')::float8) * (attempt - 1), 100)),
                       (p ->> 'max_delay_ms')::float8) END AS planned
        FROM (SELECT '{"kind": "exponential", "initial_delay_ms": 5000, "multiplier": 2, "max_delay_ms": 3600000, "jitter": 0.1}'::jsonb
                     || coalesce((SELECT t.retry_policy FROM howdah.task_type t WHERE t.id = of_type), '{}')
                     || coalesce(options -> 'retry_policy', '{}') AS p) d) e
$$;

-- Returns the fallback type of a job without attempts left: the job's own fallback, else the fallback of its type. Null: there
-- is no fallback, the job is in its fallback already, or its options contain an invalid value.
CREATE OR REPLACE FUNCTION howdah.fallback_of(of_type integer, options jsonb) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT f.id FROM howdah.task_type f
    WHERE f.id = CASE WHEN options -> 'fallback_from' IS NOT NULL THEN NULL
                      WHEN jsonb_typeof(options -> 'fallback') = 'number'
                      THEN least(greatest((options -> 'fallback')::numeric, 0), 2147483647)::integer
                      ELSE (SELECT t.fallback FROM howdah.task_type t WHERE t.id = of_type) END
      AND f.id <> of_type
$$;
