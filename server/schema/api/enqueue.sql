-- Enqueues one job.

-- Stores checked jobs, and tells the brokers. A request key makes a repeat of all of it safe.
CREATE OR REPLACE FUNCTION howdah.store_checked(cs howdah.checked_job[], request_key text, body_hash bytea)
RETURNS TABLE (id bigint, outcome text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    r record;
    ids bigint[];
    outcomes text[];
    before howdah.request;
BEGIN
    request_key := howdah.text_of('request_key', store_checked.request_key, 200);
    SELECT array_agg(1 ORDER BY n) AS nos, array_agg(c.type_id ORDER BY n) AS type_ids, array_agg(c.rank_base ORDER BY n) AS bases,
           array_agg(c.priority ORDER BY n) AS priorities, array_agg(c.max_attempts ORDER BY n) AS attempts,
           array_agg(c.timeout_ms ORDER BY n) AS timeouts, array_agg(c.key ORDER BY n) AS keys,
           array_agg(c.headers ORDER BY n) AS headers, array_agg(c.options ORDER BY n) AS options,
           array_agg(c.payload ORDER BY n) AS payloads, array_agg(c.run_at_us ORDER BY n) AS starts,
           array_agg(c.delay_ms ORDER BY n) AS delays, array_agg(c.extra ORDER BY n) AS extras,
           array_agg(n::integer ORDER BY n) FILTER (WHERE c.data IS NOT NULL) AS data_ordinals,
           array_agg(c.data ORDER BY n) FILTER (WHERE c.data IS NOT NULL) AS data
    INTO a FROM unnest(cs) WITH ORDINALITY
        AS c(type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options, payload, run_at_us, delay_ms, extra, data, n);
    FOR r IN SELECT * FROM howdah.enqueue_jobs(
        a.nos, a.type_ids, a.bases, a.priorities, a.attempts, a.timeouts, a.keys, a.headers, a.options, a.payloads, a.starts,
        a.delays, a.extras, CASE WHEN request_key <> '' THEN ARRAY[1] END, CASE WHEN request_key <> '' THEN ARRAY[request_key] END,
        CASE WHEN request_key <> '' THEN ARRAY[body_hash] END, a.data_ordinals, a.data)
    LOOP
        IF r.kind IS NULL THEN
            ids[r.ordinal] := r.id;
            outcomes[r.ordinal] := r.outcome;
        ELSE
            PERFORM howdah.send_wakeup(ROW(r.kind, r.type_id, r.rank, r.jobs, r.in_us)::howdah.wakeup);
        END IF;
    END LOOP;
    IF outcomes[1] = 'repeated' THEN
        SELECT * INTO before FROM howdah.request q WHERE q.key = request_key;
        IF before.body_hash <> body_hash THEN
            PERFORM howdah.refuse('request_key', howdah.quoted(request_key) || ' was used for other jobs; use another one');
        END IF;
        ids := before.ids;
    END IF;
    RETURN QUERY SELECT * FROM unnest(ids, outcomes);
END $$;

-- The same, with errors that name the argument. To catch them costs a subtransaction; few jobs can have them.
CREATE OR REPLACE FUNCTION howdah.store_jobs(cs howdah.checked_job[], request_key text, body_hash bytea, many boolean)
RETURNS TABLE (id bigint, outcome text) LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    ordinal text;
    field text;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(cs) c WHERE c.extra ? 'after' OR c.extra ->> 'key_policy' = 'reject') THEN
        RETURN QUERY SELECT * FROM howdah.store_checked(cs, request_key, body_hash);
        RETURN;
    END IF;
    BEGIN
        RETURN QUERY SELECT * FROM howdah.store_checked(cs, request_key, body_hash);
    EXCEPTION WHEN SQLSTATE 'HW001' OR SQLSTATE 'HW002' THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, ordinal = PG_EXCEPTION_DETAIL;
        field := CASE WHEN many THEN format('jobs[%s].', ordinal::integer - 1) ELSE '' END;
        IF SQLSTATE = 'HW001' THEN
            RAISE EXCEPTION '%after %', field, problem USING ERRCODE = 'HW001', COLUMN = field || 'after';
        END IF;
        RAISE EXCEPTION '%key: %', field, problem USING ERRCODE = 'HW002', COLUMN = field || 'key';
    END;
END $$;

-- A job of any kind. Returns its id, or that of the job that has its key or was stored by the same request. Times and
-- intervals are texts on their way, so their form is pinned: the same request has the same hash in every session. Its
-- statements are planned once a connection, as the brokers' are: planning would cost more than they do.
CREATE OR REPLACE FUNCTION howdah.enqueue_any(
    task_type text, payload bytea, headers jsonb DEFAULT NULL, priority integer DEFAULT 0, key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, max_attempts integer DEFAULT NULL,
    timeout interval DEFAULT NULL, retry_policy jsonb DEFAULT NULL, fallback text DEFAULT NULL, key_policy text DEFAULT NULL,
    key_version bigint DEFAULT NULL, key_hold interval DEFAULT NULL, key_debounce_limit interval DEFAULT NULL,
    expire_at timestamptz DEFAULT NULL, expire_after interval DEFAULT NULL, limit_key text DEFAULT NULL,
    fair_key text DEFAULT NULL, next_stages text[] DEFAULT NULL, stage_payload text DEFAULT NULL, after bigint[] DEFAULT NULL,
    on_dependency_failure text DEFAULT NULL, parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL, request_key text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' AS $$
DECLARE
    job_id bigint;
    j jsonb;
BEGIN
    headers := howdah.headers_of('headers', headers);
    j := jsonb_strip_nulls(jsonb_build_object(
        'task_type', task_type, 'headers', headers, 'priority', priority, 'key', key, 'run_at', run_at,
        'delay', delay, 'max_attempts', max_attempts, 'timeout', timeout, 'retry_policy', retry_policy,
        'fallback', fallback, 'key_policy', key_policy, 'key_version', key_version, 'key_hold', key_hold,
        'key_debounce_limit', key_debounce_limit, 'expire_at', expire_at, 'expire_after', expire_after,
        'limit_key', limit_key, 'fair_key', fair_key, 'next_stages', next_stages, 'stage_payload', stage_payload,
        'after', after, 'on_dependency_failure', on_dependency_failure, 'parent_id', parent_id,
        'traceparent', traceparent, 'tracestate', tracestate));
    SELECT s.id INTO job_id FROM howdah.store_jobs(ARRAY[howdah.check_job(j, payload, '')], request_key,
                                                   sha256(convert_to(j::text, 'UTF8') || payload), false) s;
    RETURN job_id;
END $$;

-- A job without options, by one insert. Each statement and expression costs in each transaction, so there are few; a
-- search_path would cost as much as all of them, so this function alone pins it by naming the schema of each
-- function and operator. What is not so plain goes the other way.
CREATE OR REPLACE FUNCTION howdah.enqueue_plain(task_type text, payload bytea) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    job_id bigint;
    the_rank bigint;
    of_type integer;
    untold boolean;
BEGIN
    INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, payload)
    SELECT pg_catalog.nextval('howdah.job_id'), howdah.rank_now(), pg_catalog.now(), t.timeout_ms, t.id, 0,
           coalesce(t.max_attempts, 10), 0, enqueue_plain.payload
    FROM howdah.task_type t
    WHERE t.name OPERATOR(pg_catalog.=) enqueue_plain.task_type
      -- A parent goes the other way; a condition without t would be a node of its own in the plan.
      AND pg_catalog.octet_length(enqueue_plain.payload) OPERATOR(pg_catalog.<=)
          CASE WHEN pg_catalog.current_setting(E'howdah\x2ejob_id', true) IS NULL THEN least(t.max_payload_bytes, 1024) END
    RETURNING r.id, r.rank, r.type_id, howdah.needs_announcement(r.type_id, r.rank) INTO job_id, the_rank, of_type, untold;
    IF untold IS NOT FALSE THEN
        IF job_id IS NULL THEN
            RETURN howdah.enqueue_any(task_type, payload);
        END IF;
        PERFORM howdah.announce(of_type, the_rank);
    END IF;
    RETURN job_id;
END $$;

-- Stores a job: it exists, and the brokers are told, if and when the transaction commits. One each for payloads of bytes,
-- text and JSON, inlined where it is called: which way a job goes is mostly known before the statement runs.
--
-- Many drivers send a statement to be planned each time. 28 arguments take three times as long to plan as a job takes to
-- store, so a job without options has functions of its own. They are taken for a call that fits both, because their first
-- argument is text and not varchar: of two that an untyped literal fits, Postgres takes the preferred type.
CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, '');

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload bytea) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, payload);

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload text) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, convert_to(payload, 'UTF8'));

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload jsonb) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, convert_to(payload::text, 'UTF8'));

DO $$
DECLARE
    of_payload text;
    names text := 'headers, key, run_at, delay, max_attempts, timeout, retry_policy, fallback, key_policy, key_version, key_hold, '
        'key_debounce_limit, expire_at, expire_after, limit_key, fair_key, next_stages, stage_payload, after, '
        'on_dependency_failure, parent_id, traceparent, tracestate, request_key';
BEGIN
    FOREACH of_payload IN ARRAY ARRAY['bytea DEFAULT ''''', 'text', 'jsonb'] LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION howdah.enqueue(
                task_type varchar, payload %1$s, headers jsonb DEFAULT NULL, priority integer DEFAULT 0,
                key text DEFAULT NULL, run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
                max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL, retry_policy jsonb DEFAULT NULL,
                fallback text DEFAULT NULL, key_policy text DEFAULT NULL, key_version bigint DEFAULT NULL,
                key_hold interval DEFAULT NULL, key_debounce_limit interval DEFAULT NULL, expire_at timestamptz DEFAULT NULL,
                expire_after interval DEFAULT NULL, limit_key text DEFAULT NULL, fair_key text DEFAULT NULL,
                next_stages text[] DEFAULT NULL, stage_payload text DEFAULT NULL, after bigint[] DEFAULT NULL,
                on_dependency_failure text DEFAULT NULL, parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL,
                tracestate text DEFAULT NULL, request_key text DEFAULT NULL)
            RETURNS bigint LANGUAGE sql
                RETURN CASE WHEN priority = 0 AND num_nonnulls(%2$s) = 0 THEN howdah.enqueue_plain(task_type, %4$s)
                            ELSE howdah.enqueue_any(task_type, %4$s, priority => priority, %3$s) END
            $f$, of_payload, names, regexp_replace(names, E'(\\w+)', E'\\1 => \\1', 'g'),
            CASE WHEN of_payload LIKE 'bytea%' THEN 'payload' ELSE 'convert_to(payload::text, ''UTF8'')' END);
    END LOOP;
END $$;
