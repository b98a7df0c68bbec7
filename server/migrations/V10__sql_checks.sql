-- SQL is a client too: what an application may call in its own transactions (docs/SQL.md). What they may call is
-- SECURITY DEFINER with a pinned search_path; nothing here is for PUBLIC (see the end), roles are made on request.

-- Bad input: the argument, what is wrong with it.
CREATE FUNCTION howdah.refuse(field text, problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% %', field, problem USING ERRCODE = '22023', COLUMN = field;
END $$;

-- A value for an error: quoted, escaped, shortened.
CREATE FUNCTION howdah.shown(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(to_json(left(value, 40) || CASE WHEN length(value) > 40 THEN '...' ELSE '' END)::text, 'null')
$$;

-- A NOTIFY holds a lock of the whole cluster until its transaction is on disk, so if each transaction had one, they
-- would commit one by one. Therefore one connection in 20 ms announces a type for all; who hears it (`e`) looks again a
-- bit later, for those that kept silent. Only a transaction that is younger than 80 ms may keep silent, and jobs that
-- would not go before what was announced: all others say exactly what there is. What is missed all the same, the
-- sweep finds. Who announced a type last, and when, is in sequences: that is seen at once, and nobody waits for it.
DO $$ BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE SEQUENCE howdah.announced_%s', i);
    END LOOP;
END $$;

-- These four have bodies of the SQL standard: they are bound to what they call now, whatever the search_path of who calls;
-- and they are short, since in a transaction of one insert each operator counts.
-- The sequence of a type; others may share it, which costs a notification more.
CREATE FUNCTION howdah.announced_in(of_type integer) RETURNS regclass LANGUAGE sql STABLE
    RETURN ('{howdah.announced_0,howdah.announced_1,howdah.announced_2,howdah.announced_3,howdah.announced_4,howdah.announced_5,howdah.announced_6,howdah.announced_7}'::regclass[])[(of_type & 7) + 1];

-- What is in it: from bit 42 in which 20 ms the transaction began (20 bits, 6 hours), from bit 22 the type, below it the pid.
CREATE FUNCTION howdah.announcement(of_type integer, began_us bigint) RETURNS bigint LANGUAGE sql STABLE
    RETURN ((began_us / 20000 & 1048575) << 42) # (of_type::bigint << 22) # pg_backend_pid();

-- Whether the brokers must be told that a job of this type became ready in this transaction, which began then: unless
-- another connection does that just now, of the same type and at most 20 ms before or 40 ms after; then in the
-- difference of the two marks the bits of the types are 0 (those of the pids are not: 1 less borrows nothing). What this
-- connection said itself may have been rolled back, or was heard long ago.
CREATE FUNCTION howdah.is_untold(of_type integer, began_us bigint) RETURNS boolean LANGUAGE sql VOLATILE
    RETURN now() < clock_timestamp() - interval '80 ms'
        OR ((pg_sequence_last_value(howdah.announced_in(of_type)) # pg_backend_pid() # (of_type::bigint << 22))
            - ((began_us / 20000 & 1048575) << 42) + 4398046511103 & -13194143727616) IS DISTINCT FROM 0;

CREATE FUNCTION howdah.rank_now() RETURNS bigint LANGUAGE sql STABLE RETURN (date_part('epoch', now()) * 1000000)::bigint;

-- Tells the brokers, unless another connection does. Returns nothing.
CREATE FUNCTION howdah.announce(of_type integer, lowest_rank bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint - 100000;
BEGIN
    IF lowest_rank < since THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'r ' || of_type || ':' || lowest_rank);
    ELSIF howdah.is_untold(of_type, howdah.rank_now()) THEN
        PERFORM setval(howdah.announced_in(of_type), howdah.announcement(of_type, howdah.rank_now()));
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'e ' || of_type || ':' || since);
    END IF;
    RETURN NULL;
END $$;

-- Tells the brokers what a function of the schema did. What comes due later than in a second, they find by themselves.
CREATE FUNCTION howdah.tell(w howdah.woken) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF w.kind = 1 THEN
        PERFORM howdah.announce(w.type_id, w.rank);
    ELSIF w.kind = 3 OR w.kind IN (2, 4) AND w.rank < 1000000 THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 's');
    END IF;
END $$;

-- A job of a type with a limit has ended: another one may begin.
CREATE FUNCTION howdah.tell_limited(of_type integer) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(rtrim('howdah.', '.') || '_wake', 'r ' || of_type || ':9223372036854775807')
$$;

-- The type of a name, made if it is new.
CREATE FUNCTION howdah.type_named(of_name text, field text) RETURNS howdah.task_type LANGUAGE plpgsql AS $$
DECLARE
    t howdah.task_type;
BEGIN
    SELECT * INTO t FROM howdah.task_type o WHERE o.name = of_name;
    IF NOT FOUND THEN
        IF of_name IS NULL OR of_name !~ '^[A-Za-z0-9._:/-]{1,200}$' THEN
            PERFORM howdah.refuse(field, format('is %s; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed', howdah.shown(of_name)));
        END IF;
        INSERT INTO howdah.task_type (name) VALUES (of_name) ON CONFLICT (name) DO NOTHING;
        SELECT * INTO t FROM howdah.task_type o WHERE o.name = of_name;
    END IF;
    RETURN t;
END $$;

-- What is null was not given, and is not looked at: these are STRICT.
-- A text of few bytes without control characters; an empty one is none.
CREATE FUNCTION howdah.text_of(field text, value text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(value) > most THEN
        PERFORM howdah.refuse(field, format('has %s bytes; at most %s are allowed', octet_length(value), most));
    ELSIF value ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM howdah.refuse(field, howdah.shown(value) || ' has a control character; none are allowed');
    END IF;
    RETURN nullif(value, '');
END $$;

-- In an object of options, a text must be one: a number that looks like a time or a name is a mistake. null is as if it were
-- left out.
CREATE FUNCTION howdah.check_texts(p text, o jsonb, VARIADIC names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    SELECT n INTO bad FROM unnest(names) n WHERE jsonb_typeof(o -> n) NOT IN ('string', 'null') LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(p || bad, format('is %s, which is no text', left((o -> bad)::text, 40)));
    END IF;
END $$;

-- An array in an object of options, of at most so many entries, which must be of this type (number: or digits in a text).
CREATE FUNCTION howdah.check_array(field text, value jsonb, type text, most integer, what text) RETURNS void LANGUAGE plpgsql STRICT AS $$
DECLARE
    bad record;
BEGIN
    IF jsonb_typeof(value) <> 'array' OR jsonb_array_length(value) > most THEN
        PERFORM howdah.refuse(field, format('is no array of at most %s %s', most, what));
    END IF;
    SELECT e.n - 1 AS place, left(e.entry::text, 40) AS entry INTO bad
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(entry, n)
    WHERE jsonb_typeof(e.entry) NOT IN (type, 'string') LIMIT 1;
    IF FOUND THEN
        PERFORM howdah.refuse(format('%s[%s]', field, bad.place),
                              format('is %s, which is no %s', bad.entry, CASE type WHEN 'string' THEN 'text' ELSE type END));
    END IF;
END $$;

-- A whole number within a range.
CREATE FUNCTION howdah.number_of(field text, value text, low bigint, high bigint) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF value !~ '^-?[0-9]{1,18}$' OR value::bigint NOT BETWEEN low AND high THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value, 40), low, high));
    END IF;
    RETURN value::bigint;
END $$;

-- A number of a fraction, likewise.
CREATE FUNCTION howdah.fraction_of(field text, value jsonb, low float8, high float8) RETURNS float8 LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF jsonb_typeof(value) <> 'number' OR value::numeric NOT BETWEEN low::numeric AND high::numeric THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value::text, 40), low, high));
    END IF;
    -- What is next to 0 would be an error here.
    RETURN round(value::numeric, 20)::float8;
END $$;

-- One of these words.
CREATE FUNCTION howdah.word_of(field text, value text, VARIADIC words text[]) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF value <> ALL (words) THEN
        PERFORM howdah.refuse(field, format('is %s; allowed are %s', howdah.shown(value), array_to_string(words, ', ')));
    END IF;
    RETURN value;
END $$;

-- An interval within a range in ms, rounded up.
CREATE FUNCTION howdah.ms_of(field text, value text, low interval, high interval) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
DECLARE
    s numeric;
BEGIN
    BEGIN
        s := extract(epoch FROM value::interval);
    EXCEPTION WHEN data_exception THEN
        PERFORM howdah.refuse(field, format('is %s, which is no interval such as ''5 minutes''', howdah.shown(value)));
    END;
    IF s NOT BETWEEN extract(epoch FROM low) AND extract(epoch FROM high) THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value, 40), low, high));
    END IF;
    RETURN ceil(s * 1000)::bigint;
END $$;

-- A time in microseconds after 1970, at most ten years ahead.
CREATE FUNCTION howdah.us_of(field text, value text) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
DECLARE
    at timestamptz;
BEGIN
    BEGIN
        at := value::timestamptz;
    EXCEPTION WHEN data_exception THEN
        PERFORM howdah.refuse(field, format('is %s, which is no time', howdah.shown(value)));
    END;
    IF at < '1970-01-01 00:00:00Z' OR at > clock_timestamp() + interval '3650 days 1 hour' THEN
        PERFORM howdah.refuse(field, format('is %s; 1970 to 3650 days ahead is allowed', at));
    END IF;
    RETURN (extract(epoch FROM at) * 1000000)::bigint;
END $$;

CREATE FUNCTION howdah.check_payload(field text, payload bytea, t howdah.task_type) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF payload IS NULL THEN
        PERFORM howdah.refuse(field, 'is null; give an empty one instead');
    ELSIF octet_length(payload) > least(t.max_payload_bytes, 1048576) THEN
        PERFORM howdah.refuse(field, format('has %s bytes; at most %s are allowed', octet_length(payload), least(t.max_payload_bytes, 1048576)));
    END IF;
END $$;

-- Headers as they are stored; none at all are null.
CREATE FUNCTION howdah.headers_of(field text, headers jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    h record;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        PERFORM howdah.refuse(field, 'is no JSON object of texts');
    END IF;
    SELECT count(*) AS entries, coalesce(sum(octet_length(e.key) + octet_length(e.value #>> '{}')), 0) AS bytes,
           min(e.key) FILTER (WHERE jsonb_typeof(e.value) <> 'string') AS bad
    INTO h FROM jsonb_each(headers) e;
    IF h.bad IS NOT NULL THEN
        PERFORM howdah.refuse(field, howdah.shown(h.bad) || ' is no text');
    ELSIF h.entries > 64 OR h.bytes > 8192 THEN
        PERFORM howdah.refuse(field, format('has %s entries of %s bytes together; at most 64 and 8192 are allowed', h.entries, h.bytes));
    END IF;
    RETURN nullif(headers, '{}');
END $$;

-- A retry policy with holes, as it is stored in options.
CREATE FUNCTION howdah.retry_of(field text, policy jsonb) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
DECLARE
    kind text;
    bad text;
BEGIN
    IF jsonb_typeof(policy) <> 'object' THEN
        PERFORM howdah.refuse(field, 'is no JSON object');
    END IF;
    policy := jsonb_strip_nulls(policy);
    PERFORM howdah.check_texts(field || '.', policy, 'kind', 'initial_delay', 'max_delay');
    kind := howdah.word_of(field || '.kind', policy ->> 'kind', 'exponential', 'linear', 'fixed', 'list');
    SELECT k INTO bad FROM jsonb_object_keys(policy) k
    WHERE k <> ALL (CASE coalesce(kind, 'exponential')
        WHEN 'exponential' THEN ARRAY['kind', 'initial_delay', 'multiplier', 'max_delay', 'jitter']
        WHEN 'linear' THEN ARRAY['kind', 'initial_delay', 'max_delay', 'jitter']
        WHEN 'fixed' THEN ARRAY['kind', 'initial_delay', 'jitter'] ELSE ARRAY['kind', 'delays', 'jitter'] END) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(field || '.' || left(bad, 40), format('is not for kind %s', coalesce(kind, 'exponential')));
    ELSIF kind = 'list' AND (jsonb_typeof(policy -> 'delays') IS DISTINCT FROM 'array'
                             OR jsonb_array_length(policy -> 'delays') NOT BETWEEN 1 AND 100) THEN
        PERFORM howdah.refuse(field || '.delays', 'is no array of 1 to 100 intervals');
    END IF;
    PERFORM howdah.check_array(field || '.delays', policy -> 'delays', 'string', 100, 'intervals');
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'kind', kind,
        'initial_ms', howdah.ms_of(field || '.initial_delay', policy ->> 'initial_delay', '0', '30 days'),
        'multiplier', howdah.fraction_of(field || '.multiplier', policy -> 'multiplier', 1, 100),
        'max_ms', howdah.ms_of(field || '.max_delay', policy ->> 'max_delay', '0', '30 days'),
        'jitter', howdah.fraction_of(field || '.jitter', policy -> 'jitter', 0, 1),
        'delays_ms', (SELECT jsonb_agg(howdah.ms_of(format('%s.delays[%s]', field, d.n - 1), d.delay, '0', '30 days') ORDER BY d.n)
                      FROM jsonb_array_elements_text(policy -> 'delays') WITH ORDINALITY AS d(delay, n))));
END $$;

-- The job that this session runs, if its worker says so: the parent of what it enqueues, where nothing else is said. Its
-- name is written so that it stays the same in every schema.
CREATE FUNCTION howdah.running_job() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN nullif(howdah.number_of(E'the setting howdah\x2ejob_id', nullif(current_setting(E'howdah\x2ejob_id', true), ''),
                                   0, 999999999999999999), 0);
END $$;

-- A job as enqueue_jobs wants it.
CREATE TYPE howdah.checked_job AS (
    type_id integer, rank_base bigint, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb,
    options jsonb, payload bytea, run_at_us bigint, delay_ms bigint, extra jsonb, data bytea
);

-- Checks a job, an object of options by their names; p goes before their names in errors.
CREATE FUNCTION howdah.check_job(j jsonb, payload bytea, p text) RETURNS howdah.checked_job LANGUAGE plpgsql AS $$
DECLARE
    c howdah.checked_job;
    t howdah.task_type;
    o jsonb;
    bad text;
    policy text;
    stages integer[];
    expire_us bigint;
    expire_ms bigint;
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    step bigint;
BEGIN
    SELECT k INTO bad FROM jsonb_object_keys(j) k WHERE k <> ALL (ARRAY[
        'task_type', 'headers', 'priority', 'key', 'run_at', 'delay', 'max_attempts', 'timeout', 'retry_policy', 'fallback',
        'key_policy', 'key_version', 'key_hold', 'key_debounce_limit', 'expire_at', 'expire_after', 'limit_key', 'fair_key',
        'next_stages', 'stage_payload', 'after', 'on_dependency_failure', 'parent_id', 'traceparent', 'tracestate']) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(p || left(bad, 40), 'is no option of a job');
    END IF;
    PERFORM howdah.check_texts(p, j, 'task_type', 'key', 'run_at', 'delay', 'timeout', 'fallback', 'key_policy', 'key_hold',
                               'key_debounce_limit', 'expire_at', 'expire_after', 'limit_key', 'fair_key', 'stage_payload',
                               'on_dependency_failure', 'traceparent', 'tracestate');
    policy := howdah.word_of(p || 'key_policy', j ->> 'key_policy', 'keep', 'replace', 'replace_if_newer', 'reject', 'debounce');
    expire_us := howdah.us_of(p || 'expire_at', j ->> 'expire_at');
    expire_ms := howdah.ms_of(p || 'expire_after', j ->> 'expire_after', '1 ms', '3650 days');
    t := howdah.type_named(j ->> 'task_type', p || 'task_type');
    PERFORM howdah.check_payload(p || 'payload', payload, t);
    c.type_id := t.id;
    c.priority := coalesce(howdah.number_of(p || 'priority', j ->> 'priority', -1000, 1000), 0);
    c.max_attempts := coalesce(howdah.number_of(p || 'max_attempts', j ->> 'max_attempts', 1, 1000), t.max_attempts, 10);
    c.timeout_ms := coalesce(howdah.ms_of(p || 'timeout', j ->> 'timeout', '1 ms', '30 days'), t.timeout_ms);
    c.key := howdah.text_of(p || 'key', j ->> 'key', 200);
    c.headers := howdah.headers_of(p || 'headers', j -> 'headers');
    c.run_at_us := howdah.us_of(p || 'run_at', j ->> 'run_at');
    c.delay_ms := nullif(howdah.ms_of(p || 'delay', j ->> 'delay', '0', '3650 days'), 0);
    IF c.run_at_us IS NOT NULL AND j ? 'delay' THEN
        PERFORM howdah.refuse(p || 'delay', 'is set together with run_at; set one of them');
    ELSIF expire_us IS NOT NULL AND expire_ms IS NOT NULL THEN
        PERFORM howdah.refuse(p || 'expire_after', 'is set together with expire_at; set one of them');
    ELSIF coalesce(expire_us, now_us + expire_ms * 1000) <= coalesce(c.run_at_us, now_us + c.delay_ms * 1000) THEN
        PERFORM howdah.refuse(p || CASE WHEN expire_us IS NULL THEN 'expire_after' ELSE 'expire_at' END,
                              'is not after the job''s start (run_at or delay): it would never run');
    END IF;
    SELECT k INTO bad FROM unnest(ARRAY['key_policy', 'key_version', 'key_hold', 'key_debounce_limit']) k WHERE j ? k LIMIT 1;
    IF bad IS NOT NULL AND c.key IS NULL THEN
        PERFORM howdah.refuse(p || bad, 'is set without a key; set key too');
    ELSIF policy = 'replace_if_newer' AND NOT j ? 'key_version' THEN
        PERFORM howdah.refuse(p || 'key_version', 'is not set; replace_if_newer compares it');
    ELSIF policy = 'debounce' AND c.run_at_us IS NULL AND c.delay_ms IS NULL THEN
        PERFORM howdah.refuse(p || 'key_policy', 'is debounce without a delay or run_at; set how far the job is put off');
    ELSIF policy IS DISTINCT FROM 'debounce' AND j ? 'key_debounce_limit' THEN
        PERFORM howdah.refuse(p || 'key_debounce_limit', 'is set without debounce; set key_policy too');
    END IF;
    PERFORM howdah.check_array(p || 'after', j -> 'after', 'number', 10000, 'ids of jobs');
    PERFORM howdah.check_array(p || 'next_stages', j -> 'next_stages', 'string', 100, 'task types');
    IF j ? 'on_dependency_failure' AND NOT j ? 'after' THEN
        PERFORM howdah.refuse(p || 'on_dependency_failure', 'is set without after; set that too');
    ELSIF j ? 'stage_payload' AND NOT j ? 'next_stages' THEN
        PERFORM howdah.refuse(p || 'stage_payload', 'is set without next_stages; set those too');
    ELSIF j ->> 'fallback' = t.name THEN
        PERFORM howdah.refuse(p || 'fallback', 'is the task type itself; name another one');
    END IF;
    SELECT array_agg((howdah.type_named(s.name, format('%snext_stages[%s]', p, s.n - 1))).id ORDER BY s.n) INTO stages
    FROM jsonb_array_elements_text(j -> 'next_stages') WITH ORDINALITY AS s(name, n);
    step := coalesce(t.priority_step_us, 35184372088832);
    c.rank_base := c.priority * step;
    o := jsonb_strip_nulls(jsonb_build_object(
        'retry', nullif(howdah.retry_of(p || 'retry_policy', j -> 'retry_policy'), '{}'),
        'traceparent', howdah.text_of(p || 'traceparent', j ->> 'traceparent', 200),
        'tracestate', howdah.text_of(p || 'tracestate', j ->> 'tracestate', 512),
        'fallback', CASE WHEN j ->> 'fallback' <> '' THEN (howdah.type_named(j ->> 'fallback', p || 'fallback')).id END,
        'limit_key', howdah.text_of(p || 'limit_key', j ->> 'limit_key', 200),
        'fair_key', howdah.text_of(p || 'fair_key', j ->> 'fair_key', 200),
        'stages', to_jsonb(stages),
        'stage_payload', howdah.word_of(p || 'stage_payload', coalesce(j ->> 'stage_payload', CASE WHEN stages IS NOT NULL THEN 'result' END),
                                        'result', 'unchanged'),
        'on_failure', howdah.word_of(p || 'on_dependency_failure', coalesce(j ->> 'on_dependency_failure',
                                     CASE WHEN j ? 'after' THEN 'cancel' END), 'cancel', 'run', 'wait'),
        'parent', nullif(howdah.number_of(
                             p || 'parent_id', coalesce(j ->> 'parent_id', howdah.running_job()::text), 0, 999999999999999999), 0),
        'expire_us', expire_us,
        'payload_bytes', CASE WHEN octet_length(payload) > 1024 THEN octet_length(payload) END));
    IF o ? 'limit_key' OR o ? 'stages' THEN
        o := o || '{"special": true}';
    END IF;
    o := nullif(o, '{}');
    c.options := howdah.with_step(o, c.priority, step);
    c.extra := nullif(jsonb_strip_nulls(jsonb_build_object(
        'policy', CASE policy WHEN 'keep' THEN NULL WHEN 'replace_if_newer' THEN 'newer' ELSE policy END,
        'version', howdah.number_of(p || 'key_version', j ->> 'key_version', -999999999999999999, 999999999999999999),
        'hold_ms', howdah.ms_of(p || 'key_hold', j ->> 'key_hold', '1 s', '365 days'),
        'latest_ms', howdah.ms_of(p || 'key_debounce_limit', j ->> 'key_debounce_limit', '1 ms', '365 days'),
        'expire_ms', expire_ms,
        'after', (SELECT jsonb_agg(DISTINCT howdah.number_of(format('%safter[%s]', p, a.n - 1), a.id, 1, 999999999999999999))
                  FROM jsonb_array_elements_text(j -> 'after') WITH ORDINALITY AS a(id, n)))), '{}');
    c.payload := CASE WHEN octet_length(payload) > 1024 THEN '' ELSE payload END;
    c.data := CASE WHEN octet_length(payload) > 1024 THEN payload END;
    RETURN c;
END $$;

-- What this migration has made is for nobody but who is given it: called at the end of each.
CREATE FUNCTION howdah.keep_from_public() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = to_regnamespace(rtrim('howdah.', '.'))
                                           AND p.xmin::text = (txid_current() % 4294967296)::text LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;
SELECT howdah.keep_from_public();
