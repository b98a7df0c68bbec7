-- Errors of attempts.

-- Adds a failure to those of a job; the last 100 are kept.
CREATE OR REPLACE FUNCTION howdah.add_failure(failures jsonb, attempt smallint, error text, started timestamptz)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_array_length(failures) >= 100 THEN failures - 0
                ELSE coalesce(failures, '[]'::jsonb) END
        || jsonb_build_object('attempt', attempt, 'error', error, 'started', started, 'failed', now())
$$;

-- The error group of an error. Errors that differ only in numbers, ids and quoted texts belong to one group. Its name is
-- the first line of the error with # in place of these; of a Python traceback it is the last line, which has the problem.
-- Only this function defines groups. It reads 1,000 characters of a line and keeps 300.
CREATE OR REPLACE FUNCTION howdah.error_group(error text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- The collation C makes the result immutable: other collations have other letters, and change.
    line text COLLATE "C" := left(btrim(error, E' \t\r\n'), 16384);
BEGIN
    IF line IS NULL OR line = '' THEN
        RETURN '(no error text)';
    END IF;
    line := CASE WHEN starts_with(line, 'Traceback (') THEN substring(line, E'[^\r\n]*$') ELSE substring(line, E'^[^\r\n]*') END;
    line := left(line, 1000);
    -- Quoted texts. A ' inside a word is an apostrophe. The cut may have removed the last quote.
    line := regexp_replace(line, '"[^"]*("|$)', '"#"', 'g');
    line := regexp_replace(line, '`[^`]*(`|$)', '`#`', 'g');
    line := regexp_replace(line, E'(?<!\\w)''[^'']*''(?!\\w)', '''#''', 'g');
    -- UUIDs, then hexadecimal numbers and hashes: six digits or more, of which one is a figure.
    line := regexp_replace(line, E'\\m[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\M', '#', 'gi');
    line := regexp_replace(line, E'\\m(0x[0-9a-f]+|(?=[0-9a-f]*[0-9])[0-9a-f]{6,})\\M', '#', 'gi');
    -- Numbers, also 1.5 and 10:30 and 10.0.0.1; then words with a number in the middle, which are ids.
    line := regexp_replace(line, '[0-9]+([.,:][0-9]+)*', '#', 'g');
    line := regexp_replace(line, E'[\\w#]*[a-z]#[a-z][\\w#]*', '#', 'gi');
    line := regexp_replace(line, E'\\s+', ' ', 'g');
    RETURN btrim(left(btrim(line), 300));
END $$;
