-- Errors of attempts.

-- Adds a failure to the failures of a job; the last 100 are kept.
CREATE OR REPLACE FUNCTION howdah.add_failure(failures jsonb, attempt smallint, error text, started timestamptz)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_array_length(failures) >= 100 THEN failures - 0
                ELSE coalesce(failures, '[]'::jsonb) END
        || jsonb_build_object('attempt', attempt, 'error', error, 'started', started, 'failed', now())
$$;

-- Returns failures without the details of all but the last two.
CREATE OR REPLACE FUNCTION howdah.without_old_details(failures jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(CASE WHEN f.n <= jsonb_array_length(failures) - 2 AND jsonb_typeof(f.failure) = 'object' THEN f.failure - 'details' ELSE f.failure END ORDER BY f.n)
    FROM jsonb_array_elements(failures) WITH ORDINALITY AS f (failure, n)
$$;

-- Adds a failure as add_failure does. extra: the details and the place of the error, if the worker has sent them (else null). The
-- details of the last 3 failures are kept.
CREATE OR REPLACE FUNCTION howdah.add_worker_failure(failures jsonb, attempt smallint, error text, started timestamptz, extra jsonb)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN extra IS NULL THEN howdah.add_failure(failures, attempt, error, started)
                ELSE (SELECT jsonb_set(a.added, '{-1}', (a.added -> -1) || extra)
                      FROM howdah.add_failure(howdah.without_old_details(failures), attempt, error, started) AS a (added)) END
$$;

-- Returns the error group of an error. Errors that differ only in numbers, ids and quoted texts belong to one group, unless the
-- whole error is one quoted name. The group's name is the first line of the error, with # in place of these parts. Of a Python
-- traceback it is the last line, which states the problem. Only this function defines groups. It reads 1,000 characters of a
-- line and keeps 300.
CREATE OR REPLACE FUNCTION howdah.error_group(error text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- The collation C makes the result immutable: other collations classify letters differently, and may change with an
    -- upgrade.
    line text COLLATE "C" := left(btrim(error, E' \t\r\n'), 16384);
BEGIN
    IF line IS NULL OR line = '' THEN
        RETURN '(no error text)';
    END IF;
    line := CASE WHEN starts_with(line, 'Traceback (') THEN substring(line, E'[^\r\n]*$') ELSE substring(line, E'^[^\r\n]*') END;
    line := left(line, 1000);
    -- Keep the name if the whole error is one name, such as KeyError: 'user_id': a name without digits is part of the program,
    -- and not an id.
    IF line ~ E'^[\\w.]+: ([''"`])[A-Za-z_.-]{1,100}\\1$' THEN
        RETURN line;
    END IF;
    -- Replace quoted texts. A ' inside a word is an apostrophe. A quote may be unclosed, because the line was cut.
    line := regexp_replace(line, '"[^"]*("|$)', '"#"', 'g');
    line := regexp_replace(line, '`[^`]*(`|$)', '`#`', 'g');
    line := regexp_replace(line, E'(?<!\\w)''[^'']*''(?!\\w)', '''#''', 'g');
    -- Replace UUIDs, then hexadecimal numbers and hashes of six digits or more, of which at least one is from 0 to 9.
    line := regexp_replace(line, E'\\m[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\M', '#', 'gi');
    line := regexp_replace(line, E'\\m(0x[0-9a-f]+|(?=[0-9a-f]*[0-9])[0-9a-f]{6,})\\M', '#', 'gi');
    -- Replace numbers, also 1.5 and 10:30 and 10.0.0.1; then words with a number in the middle, because they are ids.
    line := regexp_replace(line, '[0-9]+([.,:][0-9]+)*', '#', 'g');
    line := regexp_replace(line, E'[\\w#]*[a-z]#[a-z][\\w#]*', '#', 'gi');
    line := regexp_replace(line, E'\\s+', ' ', 'g');
    RETURN btrim(left(btrim(line), 300));
END $$;

-- Returns the error group of a failure: the group of its error, and the place in the worker's program if it is known.
CREATE OR REPLACE FUNCTION howdah.failure_group(failure jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT howdah.error_group(failure ->> 'error') || coalesce(' at ' || (failure ->> 'place'), '')
$$;
