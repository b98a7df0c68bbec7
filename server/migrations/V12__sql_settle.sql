-- Jobs that are there, by SQL; triggers; rights (V10__sql_checks.sql).

-- The lease is not the caller's any more: its transaction must not commit.
CREATE FUNCTION howdah.lease_lost(job_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the lease of job % is lost: it was settled, timed out, cancelled or given to another worker', job_id
        USING ERRCODE = 'HW003', HINT = 'Roll back: what this attempt wrote must not be kept.';
END $$;

-- Ends a job well, in the transaction of what it wrote: both or neither.
CREATE FUNCTION howdah.complete(job_id bigint, token bigint, result bytea DEFAULT NULL, next_stage text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    r record;
    next_type integer;
    done boolean := false;
BEGIN
    IF octet_length(result) > 1048576 THEN
        PERFORM howdah.refuse('result', format('has %s bytes; at most 1048576 are allowed', octet_length(result)));
    ELSIF next_stage IS NOT NULL THEN
        next_type := (howdah.type_named(next_stage, 'next_stage')).id;
    END IF;
    FOR r IN SELECT * FROM howdah.ack_special(ARRAY[job_id], ARRAY[token], ARRAY[nullif(result, '')], ARRAY[next_type]) LOOP
        IF r.kind > 0 THEN
            PERFORM howdah.tell(ROW(r.kind, r.type_id, r.rank, r.jobs)::howdah.woken);
        ELSE
            done := true;
            IF r.type_id IS NOT NULL THEN
                PERFORM howdah.tell_limited(r.type_id);
            END IF;
        END IF;
    END LOOP;
    IF NOT done THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
END $$;

CREATE FUNCTION howdah.complete(job_id bigint, token bigint, result text, next_stage text DEFAULT NULL) RETURNS void LANGUAGE sql
    RETURN howdah.complete(job_id, token, convert_to(result, 'UTF8'), next_stage);
CREATE FUNCTION howdah.complete(job_id bigint, token bigint, result jsonb, next_stage text DEFAULT NULL) RETURNS void LANGUAGE sql
    RETURN howdah.complete(job_id, token, convert_to(result::text, 'UTF8'), next_stage);

-- How long to wait after an attempt failed: by the job's policy, its type's, or the default (server/src/job/retry.rs).
CREATE FUNCTION howdah.retry_delay_ms(of_type integer, options jsonb, attempt integer) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (planned * (1 + jitter * (2 * random() - 1)))::bigint FROM (
        SELECT (p ->> 'jitter')::float8 AS jitter, CASE p ->> 'kind'
            WHEN 'linear' THEN least((p ->> 'initial_ms')::float8 * attempt, (p ->> 'max_ms')::float8)
            WHEN 'fixed' THEN (p ->> 'initial_ms')::float8
            WHEN 'list' THEN coalesce((p -> 'delays_ms' ->> least(attempt, jsonb_array_length(p -> 'delays_ms')) - 1)::float8,
                                      (p ->> 'initial_ms')::float8)
            -- The exponent is bounded, since an overflow is an error here.
            ELSE least((p ->> 'initial_ms')::float8 * exp(least(ln((p ->> 'multiplier')::float8) * (attempt - 1), 100)),
                       (p ->> 'max_ms')::float8) END AS planned
        FROM (SELECT '{"kind": "exponential", "initial_ms": 5000, "multiplier": 2, "max_ms": 3600000, "jitter": 0.1}'::jsonb
                     || coalesce((SELECT t.retry_policy FROM howdah.task_type t WHERE t.id = of_type), '{}')
                     || coalesce(options -> 'retry', '{}') AS p) d) e
$$;

-- Ends a lease otherwise, as sql/settle_nack.sql does it: an attempt that failed (delay_ms null: by the policy; dead:
-- for good), or with a snooze one that does not count. Returns where the job is now.
CREATE FUNCTION howdah.nack(job_id bigint, token bigint, snooze boolean, dead boolean, delay_ms bigint, error text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l howdah.leased;
    into_type integer;
    attempts smallint;
    fails jsonb;
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    step bigint;
    o jsonb;
    state text;
    held bigint;
    w howdah.woken;
BEGIN
    DELETE FROM howdah.leased r WHERE r.id = job_id AND r.token = nack.token RETURNING r.* INTO l;
    IF NOT FOUND THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
    dead := dead OR NOT snooze AND l.attempt >= l.max_attempts;
    into_type := coalesce(CASE WHEN dead THEN howdah.fallback_of(l.type_id, l.options) END, l.type_id);
    step := howdah.rank_step(into_type);
    o := CASE WHEN into_type <> l.type_id THEN howdah.in_fallback(l.options, l.type_id)
              WHEN snooze AND l.options -> 'expire_us' IS NOT NULL THEN l.options - 'expire_us' ELSE l.options END;
    o := howdah.with_step(o, l.priority, step);
    attempts := CASE WHEN snooze THEN l.attempt - 1 ELSE l.attempt END;
    fails := CASE WHEN snooze THEN l.failures ELSE howdah.add_failure(l.failures, l.attempt, error, l.leased_at) END;
    delay_ms := coalesce(delay_ms, howdah.retry_delay_ms(l.type_id, l.options, l.attempt));
    IF dead AND into_type = l.type_id THEN
        state := 'dead';
        INSERT INTO howdah.dead (id, rank, created, timeout_ms, last_token, leased_at, died, type_id, attempt, max_attempts,
                                 priority, key, headers, options, failures, payload)
        VALUES (l.id, howdah.reranked(l.rank, l.priority, l.options, l.priority, step), l.created, l.timeout_ms, l.token, l.leased_at,
                now(), l.type_id, attempts, l.max_attempts, l.priority, l.key, l.headers, o, fails, l.payload);
    ELSIF NOT dead AND delay_ms > 0 THEN
        state := 'scheduled';
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        VALUES (l.id, l.priority * step + now_us + delay_ms * 1000, l.created, l.timeout_ms, l.token,
                now() + delay_ms * interval '1 millisecond', l.leased_at, l.type_id, attempts, l.max_attempts, l.priority, l.key,
                l.headers, o, fails, l.payload);
        PERFORM howdah.tell(ROW(2, NULL, delay_ms * 1000, 1)::howdah.woken);
    ELSE
        state := CASE WHEN dead THEN 'fallback' ELSE 'ready' END;
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
                                  headers, options, failures, payload)
        VALUES (l.id, l.priority * step + now_us, l.created, l.timeout_ms, l.token, into_type, CASE WHEN dead THEN 0 ELSE attempts END,
                CASE WHEN dead THEN coalesce((SELECT t.max_attempts FROM howdah.task_type t WHERE t.id = into_type), l.max_attempts)
                     ELSE l.max_attempts END, l.priority, CASE WHEN NOT dead THEN l.key END, l.headers, o, fails, l.payload);
    END IF;
    IF state <> 'ready' THEN
        FOR w IN SELECT * FROM howdah.after_end(ARRAY[l.id], ARRAY[l.type_id], ARRAY[l.key], ARRAY[coalesce(l.options, '{}') - 'limit_key'],
                ARRAY[CASE state WHEN 'dead' THEN 5 WHEN 'fallback' THEN 4 ELSE 3 END]::smallint[]) LOOP
            PERFORM howdah.tell(w);
        END LOOP;
    END IF;
    -- As Store::settle_nacks does (V15__limits_hold.sql): gates are locked last.
    IF l.options -> 'limit_key' IS NOT NULL THEN
        FOR held IN SELECT * FROM howdah.hold_back(ARRAY[l.id], ARRAY[l.type_id], ARRAY[l.options], ARRAY[l.leased_at]) LOOP
            PERFORM howdah.tell(ROW(3, NULL, 0, 1)::howdah.woken);
            state := CASE WHEN held IS NULL THEN state ELSE 'waiting' END;
        END LOOP;
    END IF;
    IF state IN ('ready', 'fallback') THEN
        PERFORM howdah.announce(into_type, l.priority * step + now_us);
    END IF;
    IF l.limited THEN
        PERFORM howdah.tell_limited(l.type_id);
    END IF;
    RETURN state;
END $$;

-- An attempt failed. It is tried again after the delay of its retry policy or after retry_after, unless its attempts
-- are used up or no_retry says that it is no use. Returns where the job is now: ready (waiting, for its limit
-- key), scheduled, dead, fallback.
CREATE FUNCTION howdah.fail(job_id bigint, token bigint, error text, retry_after interval DEFAULT NULL, no_retry boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF octet_length(error) > 16384 THEN
        error := left(error, CASE WHEN octet_length(error) = length(error) THEN 16300 ELSE 4000 END) || '... [truncated]';
    END IF;
    RETURN howdah.nack(job_id, token, false, coalesce(no_retry, false),
                       howdah.ms_of('retry_after', retry_after::text, '0', '365 days'), coalesce(error, ''));
END $$;

-- Not now: later, and this attempt does not count.
CREATE FUNCTION howdah.snooze(job_id bigint, token bigint, delay interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF delay IS NULL THEN
        PERFORM howdah.refuse('delay', 'is null; 0 s to 365 days is allowed');
    END IF;
    RETURN howdah.nack(job_id, token, true, false, howdah.ms_of('delay', delay::text, '0', '365 days'), NULL);
END $$;

-- Moves the deadline of an attempt to so long from now. Returns it.
CREATE FUNCTION howdah.extend(job_id bigint, token bigint, duration interval) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + howdah.ms_of('duration', coalesce(duration::text, 'null'), '1 ms', '30 days') * interval '1 ms';
BEGIN
    UPDATE howdah.leased l SET deadline = until WHERE l.id = job_id AND l.token = extend.token;
    IF NOT FOUND THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
    RETURN until;
END $$;

-- A job that was taken out of its table, whose state (howdah.v1.JobState) is given.
CREATE TYPE howdah.taken AS (state smallint, job howdah.waiting, leased_at timestamptz, token bigint, broker_id integer, limited boolean);

-- Takes a job out of the table that it is in, if that is of one of these states. One that moves meanwhile is looked for
-- again, in the order of a job's way.
CREATE FUNCTION howdah.take_job(job_id bigint, states smallint[]) RETURNS howdah.taken LANGUAGE plpgsql AS $$
DECLARE
    t howdah.taken;
    name text;
BEGIN
    FOR try IN 1..3 LOOP
        FOREACH t.state IN ARRAY states LOOP
            name := (ARRAY['ready', 'leased', 'scheduled', 'waiting', 'dead'])[t.state];
            EXECUTE format(
                'DELETE FROM howdah.%I WHERE id = $1 RETURNING $2, ROW(id, rank, created, timeout_ms, last_token, type_id, attempt, '
                'max_attempts, priority, key, NULL, headers, options, failures, payload)::howdah.waiting, %s', name, CASE name
                    WHEN 'leased' THEN 'leased_at, token, broker_id, limited'
                    WHEN 'scheduled' THEN 'leased_at, NULL::bigint, NULL::integer, NULL::boolean'
                    WHEN 'dead' THEN 'leased_at, NULL::bigint, NULL::integer, NULL::boolean'
                    ELSE 'NULL::timestamptz, NULL::bigint, NULL::integer, NULL::boolean' END)
                INTO t USING job_id, t.state;
            IF (t.job).id IS NOT NULL THEN
                RETURN t;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

-- Cancels a job that is not finished, wherever it is; its worker is told to stop. False: there is none.
CREATE FUNCTION howdah.cancel(job_id bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t howdah.taken := howdah.take_job(job_id, '{3,4,1,2,5}');
    j howdah.waiting := t.job;
    w howdah.woken;
BEGIN
    IF j.id IS NULL THEN
        RETURN false;
    ELSIF t.state = 4 THEN
        -- It no longer waits for others.
        DELETE FROM howdah.dependency d WHERE d.job_id = j.id;
    END IF;
    -- The lease's token is not kept: the worker's late ack must be LEASE_LOST, not a repeat.
    INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority, key,
                                headers, options, failures, payload)
    VALUES (j.id, j.created, t.leased_at, now(), j.type_id, 7, j.attempt, j.max_attempts, j.priority, j.key,
            j.headers, j.options, j.failures, j.payload);
    FOR w IN SELECT * FROM howdah.after_end(ARRAY[j.id], ARRAY[j.type_id], ARRAY[j.key], ARRAY[coalesce(j.options, '{}')],
                                            ARRAY[7]::smallint[]) LOOP
        PERFORM howdah.tell(w);
    END LOOP;
    IF t.broker_id IS NOT NULL THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', format('c %s 0 %s:%s', t.broker_id, j.id, t.token));
    END IF;
    IF t.limited THEN
        PERFORM howdah.tell_limited(j.type_id);
    END IF;
    RETURN true;
END $$;

-- Runs a scheduled or dead job now; a dead one gets all of its attempts anew. False: it is neither.
CREATE FUNCTION howdah.retry_now(job_id bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t howdah.taken := howdah.take_job(job_id, '{3,5}');
    j howdah.waiting := t.job;
    key_type integer := coalesce((j.options ->> 'key_type')::integer, j.type_id);
BEGIN
    IF j.id IS NULL THEN
        RETURN false;
    END IF;
    IF t.state = 5 THEN
        j.attempt := 0;
        -- It has begun, so it does not expire.
        j.options := nullif(j.options - 'expire_us', '{}');
        INSERT INTO howdah.job_key AS k (type_id, key, job_id) SELECT key_type, j.key, j.id WHERE j.key IS NOT NULL
        ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id, version = NULL, held_until = NULL, debounce_until = NULL
        WHERE k.held_until <= now() AND k.next_id IS NULL;
        IF EXISTS (SELECT FROM howdah.job_key k WHERE k.type_id = key_type AND k.key = j.key AND k.job_id <> j.id) THEN
            RAISE EXCEPTION 'another job has the key % of job %', to_json(j.key), j.id USING ERRCODE = 'HW002';
        END IF;
    END IF;
    j.rank := j.priority * howdah.rank_step(j.type_id) + (extract(epoch FROM now()) * 1000000)::bigint;
    j.options := howdah.with_step(j.options, j.priority, howdah.rank_step(j.type_id));
    IF j.options -> 'special' IS NULL THEN
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
                                  options, failures, payload)
        VALUES (j.id, j.rank, j.created, j.timeout_ms, j.last_token, j.type_id, j.attempt, j.max_attempts, j.priority, j.key, j.headers,
                j.options, j.failures, j.payload);
        PERFORM howdah.announce(j.type_id, j.rank);
    ELSE
        -- Who promotes it sees whether it has to wait.
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        VALUES (j.id, j.rank, j.created, j.timeout_ms, j.last_token, now(), t.leased_at, j.type_id, j.attempt, j.max_attempts,
                j.priority, j.key, j.headers, j.options, j.failures, j.payload);
        PERFORM howdah.tell(ROW(2, NULL, 0, 1)::howdah.woken);
    END IF;
    RETURN true;
END $$;

-- Another priority for a job that is not finished; for one that runs it counts if it is tried again. False: there is none.
CREATE FUNCTION howdah.reprioritize(job_id bigint, priority integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    of_type integer;
    new_rank bigint;
BEGIN
    IF howdah.number_of('priority', coalesce(priority::text, 'null'), -1000, 1000) IS NULL THEN
        RETURN false;
    END IF;
    FOR try IN 1..3 LOOP
        FOREACH name IN ARRAY ARRAY['scheduled', 'waiting', 'ready', 'leased'] LOOP
            EXECUTE format(
                'UPDATE howdah.%I SET rank = howdah.reranked(rank, priority, options, $2, howdah.rank_step(type_id)), priority = $2, '
                'options = howdah.with_step(options, $2, howdah.rank_step(type_id)) WHERE id = $1 RETURNING type_id, rank', name)
                INTO of_type, new_rank USING job_id, priority::smallint;
            IF of_type IS NOT NULL THEN
                IF name = 'ready' THEN
                    PERFORM howdah.announce(of_type, new_rank);
                END IF;
                RETURN true;
            END IF;
        END LOOP;
    END LOOP;
    RETURN false;
END $$;

-- The job of a change. As in enqueue_plain, what is short is one insert.
CREATE FUNCTION howdah.enqueue_changed(task_type text, changed bytea, about jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stored howdah.ready;
BEGIN
    about := howdah.headers_of('about', about);
    INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers, payload)
    SELECT nextval('howdah.job_id'), howdah.rank_now(), now(), t.timeout_ms, t.id, 0, coalesce(t.max_attempts, 10), 0, about, changed
    FROM howdah.task_type t
    WHERE t.name = enqueue_changed.task_type AND octet_length(changed) <= least(t.max_payload_bytes, 1024) AND howdah.running_job() IS NULL
    RETURNING r.* INTO stored;
    IF FOUND THEN
        PERFORM howdah.announce(stored.type_id, stored.rank);
    ELSE
        PERFORM howdah.enqueue_any(task_type, changed, about);
    END IF;
END $$;

-- The trigger of on_change: a job for each row. It has the rights of who writes, since a row becomes JSON by casts of its
-- types, and those are anybody's code: with the owner's rights here, whoever makes a type would have them. So who
-- writes must be a producer; a function with more rights for those who are none could be called by all of them.
CREATE FUNCTION howdah.enqueue_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (CASE WHEN has_schema_privilege(rtrim('howdah.', '.'), 'USAGE')
                 THEN has_function_privilege('howdah.enqueue_changed(text, bytea, jsonb)', 'EXECUTE') ELSE false END) THEN
        RAISE EXCEPTION 'a change of %.% enqueues a job of %, and % may not enqueue', quote_ident(TG_TABLE_SCHEMA),
            quote_ident(TG_TABLE_NAME), to_json(TG_ARGV[0]), quote_ident(current_user)
            USING ERRCODE = '42501', HINT = format('GRANT howdah_producer TO %I', current_user);
    END IF;
    PERFORM howdah.enqueue_changed(
        TG_ARGV[0], convert_to(to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END)::text, 'UTF8'),
        jsonb_build_object('operation', lower(TG_OP), 'table', format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME)));
    RETURN NULL;
END $$;

-- From now on each insert, update and delete of a row enqueues a job, with the row (that was deleted) as jsonb and headers
-- operation and table. Needs the right to make a trigger on the table. Returns the trigger's name, howdah_TYPE, so again is
-- no change; a long type is shortened, with a hash, since Postgres cuts names.
CREATE FUNCTION howdah.on_change(table_name regclass, task_type text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'howdah_' || CASE WHEN length(task_type) <= 56 THEN task_type ELSE left(task_type, 23) || '_' || md5(task_type) END;
BEGIN
    IF table_name IS NULL THEN
        RAISE EXCEPTION 'table_name is null; name a table' USING ERRCODE = '22023', COLUMN = 'table_name';
    END IF;
    IF task_type IS NULL OR task_type !~ '^[A-Za-z0-9._:/-]{1,200}$' THEN
        RAISE EXCEPTION 'task_type is %; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed', coalesce(to_json(left(task_type, 40))::text, 'null')
            USING ERRCODE = '22023', COLUMN = 'task_type';
    END IF;
    EXECUTE pg_catalog.format('CREATE OR REPLACE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
                              'EXECUTE FUNCTION howdah.enqueue_change(%L)', name, table_name, task_type);
    RETURN name;
END $$;

-- Makes the roles howdah_producer, howdah_worker and howdah_reader, if they are not there and the caller may, and gives
-- them their rights in this schema. Roles are of the whole cluster: other databases may have made them. Returns those that have their rights.
CREATE FUNCTION howdah.create_roles() RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    called text;
BEGIN
    FOREACH name IN ARRAY ARRAY['howdah_producer', 'howdah_worker', 'howdah_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', name);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- Another database was faster.
            WHEN insufficient_privilege THEN
                RAISE WARNING 'role % is not there, and % may not create it', name, current_user
                    USING HINT = 'Let somebody with CREATEROLE say: CREATE ROLE ' || name || ' NOLOGIN; then do this again.';
                CONTINUE;
        END;
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %s TO %I', rtrim('howdah.', '.'), name);
        FOR called IN
            SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = pg_catalog.to_regnamespace(rtrim('howdah.', '.')) AND p.proname = ANY (CASE name
                WHEN 'howdah_producer' THEN ARRAY['enqueue', 'enqueue_plain', 'enqueue_any', 'enqueue_many', 'enqueue_batch', 'cancel', 'retry_now', 'reprioritize', 'on_change', 'enqueue_change',
                                               'enqueue_changed']
                WHEN 'howdah_worker' THEN ARRAY['complete', 'fail', 'snooze', 'extend']
                ELSE ARRAY['payload_of', 'payload_size', 'error_group', 'original_type', 'special_view', 'limits_of', 'step_of'] END)
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I', called, name);
        END LOOP;
        IF name = 'howdah_reader' THEN
            EXECUTE pg_catalog.format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO %I', rtrim('howdah.', '.'), name);
        END IF;
        RETURN NEXT name;
    END LOOP;
END $$;

SELECT howdah.keep_from_public();
