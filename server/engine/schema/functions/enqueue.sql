-- Stores jobs with options that need more than one insert: keys, start times, dependencies, limit keys, fair keys, stages.

-- Converts a new job to a row of waiting. The start time stays in the options, so that it still applies after the job has
-- waited.
CREATE OR REPLACE FUNCTION howdah.as_waiting(j howdah.new_job) RETURNS howdah.waiting LANGUAGE sql STABLE AS $$
    SELECT ROW(j.id, j.rank, now(), j.timeout_ms, NULL, j.type_id, 0, j.max_attempts, j.priority, j.key, NULL, j.headers,
               CASE WHEN j.start_us IS NULL THEN j.options
                    ELSE coalesce(j.options, '{}') || jsonb_build_object('start_us', j.start_us) END,
               NULL, j.payload)::howdah.waiting
$$;

-- Records a request key and the job that the request stored; without a request key it does nothing. If the request key exists
-- already, the statement fails.
CREATE OR REPLACE FUNCTION howdah.note_request(request_key text, hash bytea, job_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.request (key, body_hash, ids) VALUES (request_key, hash, ARRAY[job_id]);
    RETURN true;
END $$;

-- Returns the names of the options that only the enqueue uses. All other options are stored with the job. route_new stores the
-- option `after` anew, with the ids of all dependencies.
CREATE OR REPLACE FUNCTION howdah.enqueue_only() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT '{key_policy,key_hold_ms,key_debounce_limit_ms,expire_after_ms,after,after_ordinals}'::text[]
$$;

-- Returns the options that are stored with a job. Adds the mark `coordinated` if becoming ready or ending has consequences
-- beyond the job's own row.
CREATE OR REPLACE FUNCTION howdah.kept_options(requested jsonb, starts_later boolean, has_dependents boolean, now_us bigint)
RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(coalesce(requested, '{}') - howdah.enqueue_only()
        || CASE WHEN has_dependents OR requested ?| '{limit_key,next_stages,history,key_version}' OR requested ? 'fair_key' AND starts_later
                THEN '{"coordinated": true}'::jsonb ELSE '{}' END
        || CASE WHEN requested ? 'expire_after_ms'
                THEN jsonb_build_object('expire_at_us', now_us + (requested ->> 'expire_after_ms')::bigint * 1000) ELSE '{}' END, '{}')
$$;

-- Makes a job searchable by its tags in one type: the type at the enqueue, of its next stage, or of its fallback. options may
-- be malformed, because roles with SQL access may have written them.
CREATE OR REPLACE FUNCTION howdah.index_tags(job_id bigint, of_type integer, options jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.job_tag (id, created, hash, type_id)
    SELECT job_id, now(), hashtext(t.tag), of_type
    FROM jsonb_array_elements_text(CASE jsonb_typeof(options -> 'tags') WHEN 'array' THEN options -> 'tags' ELSE '[]' END) AS t(tag);
    RETURN true;
END $$;

-- Stores jobs with or without a fair key that become ready at once and have no key or limit key (see is_fair_batch). The result
-- is the same as with enqueue_jobs, but one statement takes less than half of the time. The ranks are computed as in
-- fair_ranks.
CREATE OR REPLACE FUNCTION howdah.enqueue_fair_batch(
    type_ids integer[], rank_bases bigint[], priorities smallint[], max_attempts smallint[], timeouts_ms bigint[], headers jsonb[],
    options jsonb[], payloads bytea[], out_of_line_ordinals integer[], out_of_line_data bytea[])
RETURNS TABLE (
    kind howdah.wakeup_kind, ordinal integer, id bigint, outcome howdah.enqueue_outcome, type_id integer, rank bigint, jobs bigint, in_us bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
BEGIN
    RETURN QUERY
    WITH new AS MATERIALIZED (
        SELECT u.*, nextval('howdah.job_id') AS id, (u.options ->> 'fair_key') COLLATE "C" AS fair_key
        FROM unnest(type_ids, rank_bases, priorities, max_attempts, timeouts_ms, headers, options, payloads) WITH ORDINALITY
            AS u(type_id, rank_base, priority, max_attempts, timeout_ms, headers, options, payload, ordinal)
    ),
    numbered AS MATERIALIZED (
        SELECT n.*, row_number() OVER (PARTITION BY n.type_id, n.priority, n.fair_key ORDER BY n.id) AS nth FROM new n
    ),
    base AS MATERIALIZED (
        SELECT b.type_id, b.priority, howdah.fair_base(b.type_id, b.priority, b.priority * b.step + now_us, b.step) AS rank
        FROM (SELECT d.*, howdah.rank_step(d.type_id) AS step FROM (SELECT DISTINCT t.type_id, t.priority FROM numbered t WHERE t.fair_key IS NOT NULL) d
              OFFSET 0) b
    ),
    given AS (
        -- Sort the rows, so that two calls with the same fair keys lock them in the same order and do not deadlock.
        INSERT INTO howdah.fair_share AS f (type_id, priority, fair_key, last_rank, given)
        SELECT k.type_id, k.priority, k.fair_key,
               (SELECT b.rank FROM base b WHERE b.type_id = k.type_id AND b.priority = k.priority) + (k.given - 1) * howdah.fair_rank_distance(),
               k.given
        FROM (SELECT t.type_id, t.priority, t.fair_key, max(t.nth) AS given FROM numbered t WHERE t.fair_key IS NOT NULL GROUP BY 1, 2, 3) k
        ORDER BY 1, 2, 3
        ON CONFLICT ON CONSTRAINT fair_share_pkey DO UPDATE SET given = excluded.given,
            last_rank = greatest(excluded.last_rank, f.last_rank + excluded.given * howdah.fair_rank_distance())
        RETURNING f.type_id, f.priority, f.fair_key, f.last_rank - (f.given - 1) * howdah.fair_rank_distance() AS first_rank
    ),
    stored AS (
        INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers, options, payload)
        SELECT t.id, coalesce(g.first_rank + (t.nth - 1) * howdah.fair_rank_distance(), t.rank_base + now_us), now(), t.timeout_ms, t.type_id,
               0, t.max_attempts, t.priority, t.headers, nullif(t.options, '{}'), t.payload
        FROM numbered t LEFT JOIN given g ON g.type_id = t.type_id AND g.priority = t.priority AND g.fair_key = t.fair_key
        RETURNING r.type_id, r.rank
    ),
    out_of_line AS (
        INSERT INTO howdah.payload (id, created, data)
        SELECT n.id, now(), a.data
        FROM unnest(out_of_line_ordinals, out_of_line_data) AS a(ordinal, data) JOIN new n USING (ordinal)
    ),
    counted AS (
        INSERT INTO howdah.statistics_change (type_id, enqueued) SELECT n.type_id, count(*) FROM new n GROUP BY 1
    )
    SELECT 'ready'::howdah.wakeup_kind, NULL::integer, NULL::bigint, NULL::howdah.enqueue_outcome, s.type_id, min(s.rank), count(*),
           NULL::bigint
    FROM stored s GROUP BY s.type_id
    UNION ALL
    SELECT NULL, n.ordinal::integer, n.id, 'new', NULL, NULL, NULL, NULL FROM new n;
END $$;

-- Returns whether enqueue_fair_batch can store these jobs: all of them are ready at once, none has an option that determines
-- where it is stored (such as a key or a limit key), and at least one has a fair key.
CREATE OR REPLACE FUNCTION howdah.is_fair_batch(keys text[], options jsonb[], run_at_us bigint[], delays_ms bigint[], request_keys text[])
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(array_remove(keys, NULL), '{}') = '{}' AND coalesce(array_remove(run_at_us, NULL), '{}') = '{}'
        AND coalesce(array_remove(delays_ms, NULL), '{}') = '{}' AND coalesce(request_keys, '{}') = '{}'
        AND coalesce((SELECT bool_or(o ? 'fair_key') AND bool_and(
                          o - '{fair_key,retry_policy,fallback,parent_id,traceparent,tracestate}'::text[] = '{}') FROM unnest(options) o), false);
END $$;

-- Stores jobs with any options. The first 12 arguments have one entry per job, the next three one per request with a request
-- key, and out_of_line_… one per payload that is stored out of line. Result rows with a kind are wake-ups. A row with a null
-- kind is the result of one job: its ordinal, id and outcome. Options have the names of the protocol
-- (server/core/src/job/job_options.rs). take_keys handles the keys of all jobs before the first job is stored, so that a later job
-- with the same key can replace an earlier job of the call. Limit states are changed last.
CREATE OR REPLACE FUNCTION howdah.enqueue_jobs(
    request_nos integer[], type_ids integer[], rank_bases bigint[], priorities smallint[], max_attempts smallint[],
    timeouts_ms bigint[], keys text[], headers jsonb[], options jsonb[], payloads bytea[], run_at_us bigint[],
    delays_ms bigint[], request_key_nos integer[], request_keys text[], body_hashes bytea[],
    out_of_line_ordinals integer[], out_of_line_data bytea[])
RETURNS TABLE (
    kind howdah.wakeup_kind, ordinal integer, id bigint, outcome howdah.enqueue_outcome, type_id integer, rank bigint, jobs bigint, in_us bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    new howdah.new_job[];
    awaited integer[];
    routed howdah.waiting[];
    limit_types integer[];
    limit_keys text[];
    have_tags boolean;
    repeated integer[];
    i integer;
    taken record;
    answer record;
BEGIN
    IF howdah.is_closed() THEN
        PERFORM howdah.refuse_closed();
    END IF;
    IF howdah.is_fair_batch(keys, options, run_at_us, delays_ms, request_keys) THEN
        RETURN QUERY SELECT * FROM howdah.enqueue_fair_batch(type_ids, rank_bases, priorities, max_attempts, timeouts_ms, headers, options,
                                                        payloads, out_of_line_ordinals, out_of_line_data);
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT e.value::integer) INTO awaited
    FROM unnest(options) o CROSS JOIN LATERAL jsonb_array_elements_text(o -> 'after_ordinals') e WHERE o ? 'after_ordinals';
    SELECT array_agg(ROW(i.ordinal, nextval('howdah.job_id'), i.request_no, NULL, NULL, i.start_us,
                         i.rank_base + greatest(coalesce(i.start_us, now_us), now_us), i.type_id, i.priority, i.max_attempts,
                         i.timeout_ms, i.key, i.headers,
                         CASE WHEN i.options IS NOT NULL OR i.ordinal = ANY (awaited) THEN howdah.kept_options(
                             i.options, i.start_us IS NOT NULL, coalesce(i.ordinal = ANY (awaited), false), now_us) END,
                         i.payload, a.data, i.options)::howdah.new_job ORDER BY i.ordinal),
           bool_or(i.options -> 'tags' IS NOT NULL)
    INTO new, have_tags
    FROM (
        SELECT u.*, coalesce(u.run_at, now_us + u.delay_ms * 1000) AS start_us
        FROM unnest(request_nos, type_ids, rank_bases, priorities, max_attempts, timeouts_ms, keys, headers, options, payloads,
                    run_at_us, delays_ms) WITH ORDINALITY
            AS u(request_no, type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options, payload, run_at,
                 delay_ms, ordinal)
    ) i LEFT JOIN unnest(out_of_line_ordinals, out_of_line_data) AS a(ordinal, data) ON a.ordinal = i.ordinal;

    IF cardinality(request_key_nos) > 0 THEN
        -- Sort by key, so that two calls with the same request keys lock the rows in the same order and do not deadlock.
        WITH by_request AS (
            SELECT n.request_no, array_agg(n.id ORDER BY n.ordinal) AS ids FROM unnest(new) n GROUP BY n.request_no
        ), stored AS (
            INSERT INTO howdah.request (key, body_hash, ids)
            SELECT q.key, q.hash, o.ids
            FROM unnest(request_key_nos, request_keys, body_hashes) AS q(no, key, hash) JOIN by_request o ON o.request_no = q.no
            ORDER BY q.key COLLATE "C"
            ON CONFLICT DO NOTHING RETURNING ids
        )
        SELECT array_agg(n.ordinal) INTO repeated
        FROM unnest(new) n WHERE n.request_no = ANY (request_key_nos) AND n.id NOT IN (SELECT unnest(s.ids) FROM stored s);
        FOREACH i IN ARRAY coalesce(repeated, '{}') LOOP
            new[i].outcome := 'repeated';
        END LOOP;
    END IF;

    IF EXISTS (SELECT FROM unnest(new) n WHERE n.key IS NOT NULL) THEN
        SELECT * INTO taken FROM howdah.take_keys(new);
        new := taken.new;
        routed := taken.routed;
        limit_types := taken.limit_types;
        limit_keys := taken.limit_keys;
    END IF;
    SELECT coalesce(routed, '{}') || coalesce(array_agg(howdah.as_waiting(n)), '{}') INTO routed
    FROM unnest(new) n WHERE n.outcome IS NULL;
    INSERT INTO howdah.payload (id, created, data)
    SELECT n.id, now(), n.data FROM unnest(new) n WHERE n.data IS NOT NULL AND coalesce(n.outcome, 'new') IN ('new', 'next');
    INSERT INTO howdah.expiry (expire_at, id)
    SELECT to_timestamp((n.options ->> 'expire_at_us')::bigint / 1000000.0),
           CASE WHEN n.outcome IN ('replaced', 'debounced') THEN n.answer_id ELSE n.id END
    FROM unnest(new) n WHERE n.options ? 'expire_at_us' AND coalesce(n.outcome, 'new') IN ('new', 'next', 'replaced', 'debounced')
    ON CONFLICT DO NOTHING;
    IF have_tags THEN
        -- A replaced job keeps the rows of its former tags. A search compares them with the job's options and skips them.
        INSERT INTO howdah.job_tag (id, created, hash, type_id)
        SELECT CASE WHEN n.outcome IN ('replaced', 'debounced') THEN n.answer_id ELSE n.id END, now(), hashtext(t.tag), n.type_id
        FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.options -> 'tags') AS t(tag)
        WHERE coalesce(n.outcome, 'new') IN ('new', 'next', 'replaced', 'debounced');
    END IF;
    PERFORM howdah.count_enqueued(ARRAY(SELECT n.type_id FROM unnest(new) n WHERE coalesce(n.outcome, 'new') IN ('new', 'next')));
    RETURN QUERY SELECT x.kind, NULL::integer, NULL::bigint, NULL::howdah.enqueue_outcome, x.type_id, x.rank, x.jobs, x.in_us
                 FROM howdah.route_new(new, routed) x;
    IF howdah.recheck_limits(limit_types, limit_keys) THEN
        RETURN QUERY SELECT 'limit'::howdah.wakeup_kind, NULL::integer, NULL::bigint, NULL::howdah.enqueue_outcome, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint;
    END IF;
    -- Stores the ids with which a repeated request is answered, if other jobs are the answer for some of its jobs. Each request
    -- is a statement: with the planner settings of brokers, a join would read the request keys of a whole day.
    FOR answer IN
        SELECT k.key, array_agg(coalesce(n.answer_id, n.id) ORDER BY n.ordinal) AS ids
        FROM unnest(request_key_nos, request_keys) AS k(no, key) JOIN unnest(new) n ON n.request_no = k.no
        WHERE n.outcome IS DISTINCT FROM 'repeated' GROUP BY k.key HAVING bool_or(n.answer_id <> n.id)
    LOOP
        UPDATE howdah.request q SET ids = answer.ids WHERE q.key = answer.key;
    END LOOP;
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, n.ordinal, coalesce(n.answer_id, n.id), coalesce(n.outcome, 'new'), NULL::integer,
                        NULL::bigint, NULL::bigint, NULL::bigint
                 FROM unnest(new) n;
END $$;

-- Stores new jobs in the tables in which they belong, and their dependencies. Fails if a job that a dependency names is
-- unknown: not in this call, live, dead or in history.
CREATE OR REPLACE FUNCTION howdah.route_new(new howdah.new_job[], routed howdah.waiting[]) RETURNS SETOF howdah.wakeup
LANGUAGE plpgsql AS $$
DECLARE
    parents bigint[];
    live bigint[];
    unknown record;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(new) n WHERE n.requested ? 'after' OR n.requested ? 'after_ordinals') THEN
        RETURN QUERY SELECT * FROM howdah.route(routed);
        RETURN;
    END IF;
    WITH named AS (
        SELECT n.id, e.value::bigint AS after_id, e.nth, false AS is_local
        FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.requested -> 'after') WITH ORDINALITY AS e(value, nth)
        WHERE n.requested ? 'after' AND coalesce(n.outcome, 'new') IN ('new', 'next')
        UNION ALL
        SELECT n.id, coalesce(p.answer_id, p.id), e.nth, true
        FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.requested -> 'after_ordinals') WITH ORDINALITY AS e(value, nth)
        JOIN unnest(new) p ON p.ordinal = e.value::integer
        WHERE n.requested ? 'after_ordinals' AND coalesce(n.outcome, 'new') IN ('new', 'next')
    ),
    -- Two dependencies may be on one job, because the holder of a key replaces the named job. The first one counts.
    parent AS MATERIALIZED (SELECT DISTINCT ON (d.id, d.after_id) d.* FROM named d ORDER BY d.id, d.after_id, d.is_local, d.nth),
    stored AS (INSERT INTO howdah.dependency (after_id, job_id) SELECT p.after_id, p.id FROM parent p ON CONFLICT DO NOTHING),
    -- A job keeps the ids of its dependencies in its options, because it gets their results when it runs. The rows of the table
    -- dependency are deleted when the dependencies end.
    lists AS (SELECT p.id, jsonb_agg(p.after_id ORDER BY p.is_local, p.nth) AS ids FROM parent p GROUP BY p.id)
    SELECT coalesce(array_agg(ROW(w.id, w.rank, w.created, w.timeout_ms, w.last_token, w.type_id, w.attempt, w.max_attempts, w.priority,
                                  w.key, w.limit_key, w.headers,
                                  CASE WHEN l.ids IS NULL THEN w.options
                                       ELSE coalesce(w.options, '{}') || jsonb_build_object('after', l.ids) END,
                                  w.failures, w.payload)::howdah.waiting ORDER BY w.nth), '{}')
    INTO routed
    FROM unnest(routed) WITH ORDINALITY AS w(id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
                                             limit_key, headers, options, failures, payload, nth)
    LEFT JOIN lists l ON l.id = w.id;
    RETURN QUERY SELECT * FROM howdah.route(routed);

    -- Collect the parents (jobs that new jobs depend on). Parents stored by the same call already have the mark `coordinated`.
    SELECT array_agg(DISTINCT d.after_id) INTO parents
    FROM unnest(new) n
    CROSS JOIN LATERAL (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = n.id OFFSET 0) d
    WHERE NOT EXISTS (SELECT FROM unnest(new) p WHERE p.id = d.after_id);
    IF parents IS NULL THEN
        RETURN;
    END IF;
    live := howdah.mark_coordinated(parents, '{"coordinated": true}');
    -- Mark dead parents too, because dependents may wait until a dead parent is retried or discarded.
    UPDATE howdah.dead x SET options = coalesce(x.options, '{}') || '{"coordinated": true}'
    WHERE x.id = ANY (parents) AND x.id <> ALL (live);
    SELECT d.after_id, n.ordinal INTO unknown
    FROM unnest(new) n
    CROSS JOIN LATERAL (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = n.id OFFSET 0) d
    WHERE d.after_id = ANY (parents) AND d.after_id <> ALL (live)
      -- Scalar subqueries force look-ups by index. Postgres may plan EXISTS as a hash of the whole table.
      AND (SELECT 1 FROM howdah.history h WHERE h.id = d.after_id LIMIT 1) IS NULL
      AND (SELECT 1 FROM howdah.dead x WHERE x.id = d.after_id) IS NULL
    ORDER BY n.ordinal LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'names job %, which does not exist, or whose history has been dropped', unknown.after_id
            USING ERRCODE = 'HW001', DETAIL = unknown.ordinal::text, HINT = 'after';
    END IF;
    -- Pass parents that had already ended to after_end, so that the new jobs that depend on them run or are cancelled.
    RETURN QUERY SELECT w.* FROM (
        SELECT array_agg(e.id) AS ids, array_agg(0) AS type_ids, array_agg(NULL::text) AS keys,
               array_agg('{}'::jsonb) AS options, array_agg(e.ending) AS endings
        FROM (SELECT h.id, h.outcome::text::howdah.ending AS ending FROM howdah.history h WHERE h.id = ANY (parents) AND h.id <> ALL (live)
              UNION SELECT x.id, 'dead' FROM howdah.dead x WHERE x.id = ANY (parents) AND x.id <> ALL (live)) e) e,
        LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.endings) w
    WHERE e.ids IS NOT NULL;
END $$;
