-- Enqueues one job. Text in double braces is generated from the options of a job (server/engine/src/store/option_sql.rs).

-- Drops the functions enqueue and enqueue_any of other releases. Each job option is an argument, so their arguments differ, and
-- a call that matches the functions of two releases would fail as ambiguous.
DO $$
DECLARE
    other regprocedure;
BEGIN
    FOR other IN SELECT p.oid FROM pg_proc p
                 WHERE p.pronamespace = to_regnamespace(rtrim('howdah.', '.')) AND p.proname IN ('enqueue', 'enqueue_any')
                   AND p.pronargs > 2 AND p.proargnames <> ARRAY['task_type', 'payload', {{argument_names}}, 'request_key']
                 ORDER BY p.proname LOOP
        EXECUTE format('DROP FUNCTION %s', other);
    END LOOP;
END $$;

-- Stores checked jobs and notifies the brokers. The request key is null or already checked. A repeated call with the same
-- request key returns the ids of the first call.
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
    SELECT array_agg(1 ORDER BY n) AS nos, array_agg(c.type_id ORDER BY n) AS type_ids, array_agg(c.rank_base ORDER BY n) AS bases,
           array_agg(c.priority ORDER BY n) AS priorities, array_agg(c.max_attempts ORDER BY n) AS attempts,
           array_agg(c.timeout_ms ORDER BY n) AS timeouts, array_agg(c.key ORDER BY n) AS keys,
           array_agg(c.headers ORDER BY n) AS headers, array_agg(c.options ORDER BY n) AS options,
           array_agg(c.payload ORDER BY n) AS payloads, array_agg(c.run_at_us ORDER BY n) AS starts,
           array_agg(c.delay_ms ORDER BY n) AS delays,
           array_agg(n::integer ORDER BY n) FILTER (WHERE c.data IS NOT NULL) AS data_ordinals,
           array_agg(c.data ORDER BY n) FILTER (WHERE c.data IS NOT NULL) AS data
    INTO a FROM unnest(cs) WITH ORDINALITY
        AS c(type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options, payload, run_at_us, delay_ms, data, n);
    FOR r IN SELECT * FROM howdah.enqueue_jobs(
        a.nos, a.type_ids, a.bases, a.priorities, a.attempts, a.timeouts, a.keys, a.headers, a.options, a.payloads, a.starts,
        a.delays, CASE WHEN request_key <> '' THEN ARRAY[1] END, CASE WHEN request_key <> '' THEN ARRAY[request_key] END,
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
            PERFORM howdah.refuse('request_key', howdah.quoted(regexp_replace(request_key, E'^.*\x1f', '')) || ' was used for other jobs; use another one');
        END IF;
        ids := before.ids;
    END IF;
    RETURN QUERY SELECT * FROM unnest(ids, outcomes);
END $$;

-- Stores checked jobs like store_checked, and names the argument in errors about keys and dependencies. Catching an error costs
-- a subtransaction, so this is done only if a job has `after` or the key policy reject.
CREATE OR REPLACE FUNCTION howdah.store_jobs(cs howdah.checked_job[], request_key text, body_hash bytea, many boolean)
RETURNS TABLE (id bigint, outcome text) LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    ordinal text;
    field text;
    unknown record;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(cs) c WHERE c.options ? 'after' OR c.options ->> 'key_policy' = 'reject') THEN
        RETURN QUERY SELECT * FROM howdah.store_checked(cs, request_key, body_hash);
        RETURN;
    END IF;
    BEGIN
        IF howdah.has_grants() THEN
            SELECT * INTO unknown FROM howdah.unknown_after(cs);
            IF FOUND THEN
                RAISE EXCEPTION 'names job %, which does not exist, or whose history has been dropped', unknown.id
                    USING ERRCODE = 'HW001', DETAIL = unknown.ordinal::text;
            END IF;
        END IF;
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

-- Enqueues a job with any options. Returns its id, or the id of the job that holds its key or was stored by the same request.
-- Times and intervals become texts, so their format is pinned by SET: the same request has the same hash in every session.
-- force_generic_plan plans the statements once per connection, because planning would cost more than running them.
CREATE OR REPLACE FUNCTION howdah.enqueue_any(task_type text, payload bytea, {{arguments}}, request_key text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' AS $$
DECLARE
    job_id bigint;
    j jsonb;
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    IF s.closed IS NOT NULL THEN
        PERFORM howdah.refuse_closed();
    END IF;
    headers := howdah.headers_of('headers', headers, s);
    j := jsonb_strip_nulls(jsonb_build_object('task_type', task_type, {{pairs}}));
    SELECT i.id INTO job_id FROM howdah.store_jobs(ARRAY[howdah.check_job(j, payload, '', s)],
                                                   howdah.own_request_key(howdah.text_of('request_key', request_key, s.key_bytes)),
                                                   sha256(convert_to(j::text, 'UTF8') || payload), false) i;
    RETURN job_id;
END $$;

-- Enqueues a job without options by one insert. The function has few statements and expressions, because each costs time in
-- each transaction. SET search_path would double the cost, so each function and operator is named with its schema. Other jobs
-- are passed to enqueue_any.
CREATE OR REPLACE FUNCTION howdah.enqueue_plain(task_type text, payload bytea) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    job_id bigint;
    the_rank bigint;
    of_type integer;
    needs_notify boolean;
BEGIN
    INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, payload)
    SELECT pg_catalog.nextval('howdah.job_id'), howdah.rank_now(), pg_catalog.now(), t.timeout_ms, t.id, 0,
           coalesce(t.max_attempts, 10), 0, enqueue_plain.payload
    FROM howdah.task_type t
    WHERE t.name OPERATOR(pg_catalog.=) enqueue_plain.task_type
      -- Inserts no row for a large payload, an unused type, a job with a parent, grants or a closed store; enqueue_any then
      -- checks the job. The conditions are part of a comparison with t, because a condition without t would add a node to the
      -- plan.
      AND pg_catalog.octet_length(enqueue_plain.payload) OPERATOR(pg_catalog.<=)
          CASE WHEN pg_catalog.current_setting(E'howdah\x2ejob_id', true) IS NULL AND t.unused_since IS NULL
                    AND NOT howdah.has_grants() AND NOT howdah.is_closed()
               THEN least(t.max_payload_bytes, 1024) END
    RETURNING r.id, r.rank, r.type_id, howdah.needs_announcement(r.type_id, r.rank) INTO job_id, the_rank, of_type, needs_notify;
    IF needs_notify IS NOT FALSE THEN
        IF job_id IS NULL THEN
            RETURN howdah.enqueue_any(task_type, payload);
        END IF;
        PERFORM howdah.announce(of_type, the_rank);
    END IF;
    INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (of_type, 1);
    RETURN job_id;
END $$;

-- Enqueues a job with a fair key and no other option, like enqueue_any, but without the steps for other options. Locks only the
-- job's row in fair_share, because many tenants enqueue at once.
CREATE OR REPLACE FUNCTION howdah.enqueue_fair(task_type text, payload bytea, fair_key text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    t record;
    of_key text;
    base bigint;
    job_id bigint;
BEGIN
    -- A large payload, an unused type, a job with a parent, grants and a closed store are handled by enqueue_any.
    SELECT o.id, o.timeout_ms, coalesce(o.max_attempts, 10::smallint) AS max_attempts,
           coalesce(o.priority_step_us, howdah.default_step()) AS step, s.key_bytes
    INTO t FROM howdah.task_type o CROSS JOIN howdah.settings s
    WHERE o.name = task_type AND octet_length(payload) <= least(o.max_payload_bytes, 1024) AND o.unused_since IS NULL
      AND current_setting(E'howdah\x2ejob_id', true) IS NULL AND NOT howdah.has_grants() AND NOT howdah.is_closed();
    IF NOT FOUND THEN
        RETURN howdah.enqueue_any(task_type, payload, fair_key => fair_key);
    END IF;
    of_key := howdah.text_of('fair_key', fair_key, t.key_bytes);
    IF of_key IS NULL THEN
        RETURN howdah.enqueue_plain(task_type, payload);
    END IF;
    base := howdah.fair_base(t.id, 0::smallint, howdah.rank_now(), t.step);
    -- The row in fair_share stays locked until the transaction commits. Until then, other enqueues with the same fair key wait.
    WITH share AS (
        INSERT INTO howdah.fair_share AS f (type_id, priority, fair_key, last_rank, given) VALUES (t.id, 0, of_key, base, 1)
        ON CONFLICT ON CONSTRAINT fair_share_pkey DO UPDATE
        SET given = 1, last_rank = greatest(excluded.last_rank, f.last_rank + howdah.fair_rank_distance())
        RETURNING f.last_rank AS rank
    )
    INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, options, payload)
    SELECT nextval('howdah.job_id'), share.rank, now(), t.timeout_ms, t.id, 0, t.max_attempts, 0,
           jsonb_build_object('fair_key', of_key), payload
    FROM share
    RETURNING r.id INTO job_id;
    PERFORM howdah.announce_fair(t.id, base);
    INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (t.id, 1);
    RETURN job_id;
END $$;

-- Stores a job. The job exists, and the brokers are notified, when the transaction commits. The function is overloaded for
-- payloads of bytes, text and JSON. Postgres inlines these functions, so the planner mostly decides between enqueue_plain,
-- enqueue_fair and enqueue_any.
--
-- Many drivers let Postgres plan the statement on each call. Planning 28 arguments takes three times as long as storing a job,
-- so jobs without options have separate functions. Postgres chooses these for a call that matches both, because their first
-- argument is text and not varchar, and text is the preferred type for an untyped literal.
CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, '');

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload bytea) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, payload);

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload text) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, convert_to(payload, 'UTF8'));

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type text, payload jsonb) RETURNS bigint LANGUAGE sql
    RETURN howdah.enqueue_plain(task_type, convert_to(payload::text, 'UTF8'));

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type varchar, payload bytea DEFAULT '', {{arguments}}, request_key text DEFAULT NULL)
RETURNS bigint LANGUAGE sql
    RETURN CASE WHEN priority = 0 AND num_nonnulls({{given}}, request_key) = 0 THEN howdah.enqueue_plain(task_type, payload)
                WHEN priority = 0 AND fair_key IS NOT NULL AND num_nonnulls({{given}}, request_key) = 1
                THEN howdah.enqueue_fair(task_type, payload, fair_key)
                ELSE howdah.enqueue_any(task_type, payload, priority => priority, {{passed}}, request_key => request_key) END;

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type varchar, payload text, {{arguments}}, request_key text DEFAULT NULL)
RETURNS bigint LANGUAGE sql
    RETURN CASE WHEN priority = 0 AND num_nonnulls({{given}}, request_key) = 0
                THEN howdah.enqueue_plain(task_type, convert_to(payload, 'UTF8'))
                WHEN priority = 0 AND fair_key IS NOT NULL AND num_nonnulls({{given}}, request_key) = 1
                THEN howdah.enqueue_fair(task_type, convert_to(payload, 'UTF8'), fair_key)
                ELSE howdah.enqueue_any(task_type, convert_to(payload, 'UTF8'), priority => priority, {{passed}}, request_key => request_key) END;

CREATE OR REPLACE FUNCTION howdah.enqueue(task_type varchar, payload jsonb, {{arguments}}, request_key text DEFAULT NULL)
RETURNS bigint LANGUAGE sql
    RETURN CASE WHEN priority = 0 AND num_nonnulls({{given}}, request_key) = 0
                THEN howdah.enqueue_plain(task_type, convert_to(payload::text, 'UTF8'))
                WHEN priority = 0 AND fair_key IS NOT NULL AND num_nonnulls({{given}}, request_key) = 1
                THEN howdah.enqueue_fair(task_type, convert_to(payload::text, 'UTF8'), fair_key)
                ELSE howdah.enqueue_any(task_type, convert_to(payload::text, 'UTF8'), priority => priority, {{passed}}, request_key => request_key) END;
