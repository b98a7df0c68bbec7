-- Checks of arguments from applications. Functions that an application calls run with the owner's rights (SECURITY DEFINER) and
-- with a pinned search_path, so that objects of the caller cannot change what they do (docs/reference/sql.md).

-- Raises an error for an invalid argument: its name, and the problem.
CREATE OR REPLACE FUNCTION howdah.refuse(field text, problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% %', field, problem USING ERRCODE = '22023', COLUMN = field;
END $$;

-- Formats a value for an error: quoted, escaped and shortened.
CREATE OR REPLACE FUNCTION howdah.quoted(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(to_json(left(value, 40) || CASE WHEN length(value) > 40 THEN '...' ELSE '' END)::text, 'null')
$$;

-- Returns the task type of this name, for a job to enqueue. Creates the type if it is new.
CREATE OR REPLACE FUNCTION howdah.type_named(of_name text, field text) RETURNS howdah.task_type LANGUAGE plpgsql AS $$
BEGIN
    IF howdah.has_grants() THEN
        PERFORM howdah.check_grant('enqueue', of_name);
    END IF;
    RETURN howdah.type_of_name(of_name, field);
END $$;

-- Returns the task type of this name, without a check of grants. Creates the type if it is new.
CREATE OR REPLACE FUNCTION howdah.type_of_name(of_name text, field text) RETURNS howdah.task_type LANGUAGE plpgsql AS $$
DECLARE
    t howdah.task_type;
BEGIN
    SELECT * INTO t FROM howdah.task_type o WHERE o.name = of_name;
    IF t.unused_since IS NOT NULL AND NOT howdah.use_task_type(t.id) THEN
        t := NULL;
    END IF;
    IF t.id IS NULL THEN
        IF of_name IS NULL OR of_name !~ '^[A-Za-z0-9._:/-]{1,200}$' THEN
            PERFORM howdah.refuse(field, format('is %s; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed', howdah.quoted(of_name)));
        END IF;
        -- Each role may create only a share of all task types. Roles that may act as the owner have no limit.
        PERFORM howdah.create_task_types(ARRAY[of_name], CASE WHEN NOT pg_has_role(session_user, (
            SELECT c.relowner FROM pg_class c WHERE c.oid = 'howdah.grants'::regclass), 'MEMBER') THEN 'sql:' || session_user END);
        SELECT * INTO t FROM howdah.task_type o WHERE o.name = of_name;
    END IF;
    RETURN t;
END $$;

-- Checks that a text is short and has no control characters; an empty text becomes null. STRICT, like most functions below: for
-- a null argument (an omitted option) the result is null, without a check.
CREATE OR REPLACE FUNCTION howdah.text_of(field text, value text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(value) > most THEN
        PERFORM howdah.refuse(field, format('has %s bytes; at most %s are allowed', octet_length(value), most));
    ELSIF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        PERFORM howdah.refuse(field, howdah.quoted(value) || ' has a control character; none are allowed');
    END IF;
    RETURN nullif(value, '');
END $$;

-- Checks that the named options are JSON strings: a number in place of a time or a name is a mistake. A null option counts as
-- omitted.
CREATE OR REPLACE FUNCTION howdah.check_texts(p text, o jsonb, VARIADIC names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    SELECT n INTO bad FROM unnest(names) n WHERE jsonb_typeof(o -> n) NOT IN ('string', 'null') LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(p || bad, format('is %s, which is not a text', left((o -> bad)::text, 40)));
    END IF;
END $$;

-- Checks that an option is an array of at most `most` entries of a JSON type. A number may also be a string of digits.
CREATE OR REPLACE FUNCTION howdah.check_array(field text, value jsonb, type text, most integer, entries text) RETURNS void LANGUAGE plpgsql STRICT AS $$
DECLARE
    bad record;
BEGIN
    IF jsonb_typeof(value) <> 'array' OR jsonb_array_length(value) > most THEN
        PERFORM howdah.refuse(field, format('is not an array of at most %s %s', most, entries));
    END IF;
    SELECT e.n - 1 AS index, left(e.entry::text, 40) AS entry INTO bad
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(entry, n)
    WHERE jsonb_typeof(e.entry) NOT IN (type, 'string') LIMIT 1;
    IF FOUND THEN
        PERFORM howdah.refuse(format('%s[%s]', field, bad.index),
                              format('is %s, which is not a %s', bad.entry, CASE type WHEN 'string' THEN 'text' ELSE type END));
    END IF;
END $$;

-- Returns the id of a task type; null for an empty name.
CREATE OR REPLACE FUNCTION howdah.type_id_of(field text, name text) RETURNS integer LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF name = '' THEN
        RETURN NULL;
    END IF;
    RETURN (howdah.type_named(name, field)).id;
END $$;

-- Returns the ids of the named task types, in the order of the names; null for an empty array.
CREATE OR REPLACE FUNCTION howdah.type_ids_of(field text, names jsonb, most integer) RETURNS integer[] LANGUAGE plpgsql STRICT AS $$
BEGIN
    PERFORM howdah.check_array(field, names, 'string', most, 'task types');
    RETURN (SELECT array_agg((howdah.type_named(e.name, format('%s[%s]', field, e.n - 1))).id ORDER BY e.n)
            FROM jsonb_array_elements_text(names) WITH ORDINALITY AS e(name, n));
END $$;

-- Converts a JSON array of job ids to bigint[], without duplicates; null for an empty array.
CREATE OR REPLACE FUNCTION howdah.job_ids_of(field text, ids jsonb, most integer) RETURNS bigint[] LANGUAGE plpgsql STRICT AS $$
BEGIN
    PERFORM howdah.check_array(field, ids, 'number', most, 'ids of jobs');
    RETURN (SELECT array_agg(DISTINCT howdah.number_of(format('%s[%s]', field, e.n - 1), e.id, 1, 9223372036854775807))
            FROM jsonb_array_elements_text(ids) WITH ORDINALITY AS e(id, n));
END $$;

-- Checks the tags in a JSON array, and returns them without duplicates, in their order; null for an empty array.
CREATE OR REPLACE FUNCTION howdah.tags_of(field text, tags jsonb, most integer, bytes integer) RETURNS text[] LANGUAGE plpgsql STRICT AS $$
BEGIN
    PERFORM howdah.check_array(field, tags, 'string', most, 'tags');
    RETURN (SELECT array_agg(u.tag ORDER BY u.first)
            FROM (SELECT howdah.tag_of(format('%s[%s]', field, e.n - 1), e.tag, bytes) AS tag, min(e.n) AS first
                  FROM jsonb_array_elements_text(tags) WITH ORDINALITY AS e(tag, n) GROUP BY 1) u);
END $$;

-- Checks a tag: 1 to `bytes` bytes without control characters.
CREATE OR REPLACE FUNCTION howdah.tag_of(field text, tag text, bytes integer) RETURNS text LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF tag = '' THEN
        PERFORM howdah.refuse(field, 'is empty; leave it out');
    END IF;
    RETURN howdah.text_of(field, tag, bytes);
END $$;

-- Checks that the intervals in a JSON array are within a range, and returns each in ms, rounded up; null for an empty array.
CREATE OR REPLACE FUNCTION howdah.all_ms_of(field text, intervals jsonb, most integer, low interval, high interval)
RETURNS bigint[] LANGUAGE plpgsql STRICT AS $$
BEGIN
    PERFORM howdah.check_array(field, intervals, 'string', most, 'intervals');
    RETURN (SELECT array_agg(howdah.ms_of(format('%s[%s]', field, e.n - 1), e.value, low, high) ORDER BY e.n)
            FROM jsonb_array_elements_text(intervals) WITH ORDINALITY AS e(value, n));
END $$;

-- Checks that a text is a whole number within a range, and returns the number.
CREATE OR REPLACE FUNCTION howdah.number_of(field text, value text, low bigint, high bigint) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF value !~ '^-?[0-9]{1,19}$' OR value::numeric NOT BETWEEN low AND high THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value, 40), low, high));
    END IF;
    RETURN value::bigint;
END $$;

-- Checks that a value is a number within a range, and returns the number as float8.
CREATE OR REPLACE FUNCTION howdah.fraction_of(field text, value jsonb, low float8, high float8) RETURNS float8 LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF jsonb_typeof(value) <> 'number' OR value::numeric NOT BETWEEN low::numeric AND high::numeric THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value::text, 40), low, high));
    END IF;
    -- Without rounding, the cast to float8 fails for a number very close to 0 (underflow).
    RETURN round(value::numeric, 20)::float8;
END $$;

-- Checks that a value is one of the allowed words.
CREATE OR REPLACE FUNCTION howdah.word_of(field text, value text, VARIADIC words text[]) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF value <> ALL (words) THEN
        PERFORM howdah.refuse(field, format('is %s; allowed are %s', howdah.quoted(value), array_to_string(words, ', ')));
    END IF;
    RETURN value;
END $$;

-- Checks that a text is an interval within a range, and returns the interval in ms, rounded up.
CREATE OR REPLACE FUNCTION howdah.ms_of(field text, value text, low interval, high interval) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
DECLARE
    s numeric;
BEGIN
    BEGIN
        s := extract(epoch FROM value::interval);
    EXCEPTION WHEN data_exception THEN
        PERFORM howdah.refuse(field, format('is %s, which is not an interval such as ''5 minutes''', howdah.quoted(value)));
    END;
    IF s NOT BETWEEN extract(epoch FROM low) AND extract(epoch FROM high) THEN
        PERFORM howdah.refuse(field, format('is %s; %s to %s is allowed', left(value, 40), low, high));
    END IF;
    RETURN ceil(s * 1000)::bigint;
END $$;

-- Returns a time in microseconds after 1970. Accepts times up to `ahead` plus one hour from now. Brokers allow the same hour,
-- for clocks that differ.
CREATE OR REPLACE FUNCTION howdah.us_of(field text, value text, ahead interval) RETURNS bigint LANGUAGE plpgsql STRICT AS $$
DECLARE
    at timestamptz;
BEGIN
    BEGIN
        at := value::timestamptz;
    EXCEPTION WHEN data_exception THEN
        PERFORM howdah.refuse(field, format('is %s, which is not a time', howdah.quoted(value)));
    END;
    IF at < '1970-01-01 00:00:00Z' OR at > clock_timestamp() + ahead + interval '1 hour' THEN
        PERFORM howdah.refuse(field, format('is %s; 1970 to %s ahead is allowed', at, ahead));
    END IF;
    RETURN (extract(epoch FROM at) * 1000000)::bigint;
END $$;

CREATE OR REPLACE FUNCTION howdah.check_payload(field text, payload bytea, t howdah.task_type, s howdah.settings) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF payload IS NULL THEN
        PERFORM howdah.refuse(field, 'is null; give an empty one instead');
    ELSIF octet_length(payload) > least(t.max_payload_bytes, s.payload_bytes) THEN
        PERFORM howdah.refuse(field, format('has %s bytes; at most %s are allowed', octet_length(payload), least(t.max_payload_bytes, s.payload_bytes)));
    END IF;
END $$;

-- Checks headers, and returns them as they are stored; null for an empty object.
CREATE OR REPLACE FUNCTION howdah.headers_of(field text, headers jsonb, s howdah.settings) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    h record;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        PERFORM howdah.refuse(field, 'is not a JSON object of texts');
    END IF;
    SELECT count(*) AS entries, coalesce(sum(octet_length(e.key) + octet_length(e.value #>> '{}')), 0) AS bytes,
           min(e.key) FILTER (WHERE jsonb_typeof(e.value) <> 'string') AS bad
    INTO h FROM jsonb_each(headers) e;
    IF h.bad IS NOT NULL THEN
        PERFORM howdah.refuse(field, howdah.quoted(h.bad) || ' is not a text');
    ELSIF h.entries > s.headers OR h.bytes > s.header_bytes THEN
        PERFORM howdah.refuse(field, format('has %s entries of %s bytes together; at most %s and %s are allowed', h.entries, h.bytes, s.headers, s.header_bytes));
    END IF;
    RETURN nullif(headers, '{}');
END $$;

-- Checks a retry policy, and returns its set fields in the format of stored options (server/engine/src/store/option_sql.rs).
CREATE OR REPLACE FUNCTION howdah.retry_of(field text, policy jsonb) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
DECLARE
    kind text;
    bad text;
BEGIN
    IF jsonb_typeof(policy) <> 'object' THEN
        PERFORM howdah.refuse(field, 'is not a JSON object');
    END IF;
    policy := jsonb_strip_nulls(policy);
    PERFORM howdah.check_texts(field || '.', policy, {{retry_texts}});
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
        PERFORM howdah.refuse(field || '.delays', 'is not an array of 1 to 100 intervals');
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        {{retry_checked}}));
END $$;

-- Returns the id of the job that the worker of this session runs, from a setting that the worker sets. That job is the parent
-- of jobs that the session enqueues without parent_id. The dot in the name of the setting is written as \x2e, because the
-- prefix of the schema is replaced in this file.
CREATE OR REPLACE FUNCTION howdah.running_job() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN nullif(howdah.number_of(E'the setting howdah\x2ejob_id', nullif(current_setting(E'howdah\x2ejob_id', true), ''),
                                   0, 999999999999999999), 0);
END $$;
