-- How attempts end.

-- Acks of coordinated jobs, and of those that became so meanwhile: to the next stage or to history, then what follows from
-- their end. ids are sorted and unique. next_types: a type that the worker names instead of the next stage. Rows with a
-- null kind answer for a job: its id, and its type if that had a limit. The others are wakeups.
CREATE OR REPLACE FUNCTION howdah.ack_coordinated(ids bigint[], tokens bigint[], results bytea[], next_types integer[])
RETURNS TABLE (kind howdah.wakeup_kind, id bigint, type_id integer, rank bigint, jobs bigint, in_us bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    deleted howdah.leased[];
    onward howdah.waiting[];
    ended bigint[];
BEGIN
    WITH g AS (
        DELETE FROM howdah.leased l
        WHERE l.id = ANY (ids) AND l.token = tokens[width_bucket(l.id, ids)]
        RETURNING l.*
    )
    SELECT array_agg(g::howdah.leased) INTO deleted FROM g;
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
               -- A stage that the worker adds to a job without stages is like the others.
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
    WHERE g.id = ANY (ended) AND howdah.keeps_history(t.history, g.failures, r.result);

    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs, x.in_us FROM howdah.route(onward) x;
    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs, x.in_us
    FROM (
        SELECT array_agg(g.id) AS ids, array_agg(g.type_id) AS type_ids, array_agg(g.key) AS keys,
               array_agg(coalesce(g.options, '{}')) AS options,
               array_agg(CASE WHEN g.id = ANY (ended) THEN 'succeeded' ELSE 'moved' END::howdah.ending) AS endings
        FROM unnest(deleted) g
    ) e, LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.endings) x;
    -- The pause after a start is counted from there also when the job has ended before the key was
    -- checked. Limit states are locked last, and found by the conflict.
    INSERT INTO howdah.limit_state AS l (type_id, limit_key, last_start)
    SELECT g.type_id, g.options ->> 'limit_key', max(g.leased_at)
    FROM unnest(deleted) g JOIN howdah.task_type t ON t.id = g.type_id AND t.key_min_gap_ms IS NOT NULL
    WHERE g.options ->> 'limit_key' IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET last_start = greatest(l.last_start, excluded.last_start);
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, g.id, CASE WHEN g.limited THEN g.type_id END, NULL::bigint, NULL::bigint, NULL::bigint
                 FROM unnest(deleted) g;
END $$;

-- How long to wait after an attempt failed: by the job's policy, its type's, or the default (server/src/job/retry.rs).
CREATE OR REPLACE FUNCTION howdah.retry_delay_ms(of_type integer, options jsonb, attempt integer) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (planned * (1 + jitter * (2 * random() - 1)))::bigint FROM (
        SELECT (p ->> 'jitter')::float8 AS jitter, CASE p ->> 'kind'
            WHEN 'linear' THEN least((p ->> 'initial_delay_ms')::float8 * attempt, (p ->> 'max_delay_ms')::float8)
            WHEN 'fixed' THEN (p ->> 'initial_delay_ms')::float8
            WHEN 'list' THEN coalesce((p -> 'delays_ms' ->> least(attempt, jsonb_array_length(p -> 'delays_ms')) - 1)::float8,
                                      (p ->> 'initial_delay_ms')::float8)
            -- The exponent is bounded, since an overflow is an error here.
            ELSE least((p ->> 'initial_delay_ms')::float8 * exp(least(ln((p ->> 'multiplier')::float8) * (attempt - 1), 100)),
                       (p ->> 'max_delay_ms')::float8) END AS planned
        FROM (SELECT '{"kind": "exponential", "initial_delay_ms": 5000, "multiplier": 2, "max_delay_ms": 3600000, "jitter": 0.1}'::jsonb
                     || coalesce((SELECT t.retry_policy FROM howdah.task_type t WHERE t.id = of_type), '{}')
                     || coalesce(options -> 'retry_policy', '{}') AS p) d) e
$$;

-- The type that a job goes to when it is given up: the job's own fallback, else its type's. Null: none, it is
-- in its fallback already, or somebody wrote junk into its options.
CREATE OR REPLACE FUNCTION howdah.fallback_of(of_type integer, options jsonb) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT f.id FROM howdah.task_type f
    WHERE f.id = CASE WHEN options -> 'fallback_from' IS NOT NULL THEN NULL
                      WHEN jsonb_typeof(options -> 'fallback') = 'number'
                      THEN least(greatest((options -> 'fallback')::numeric, 0), 2147483647)::integer
                      ELSE (SELECT t.fallback FROM howdah.task_type t WHERE t.id = of_type) END
      AND f.id <> of_type
$$;
