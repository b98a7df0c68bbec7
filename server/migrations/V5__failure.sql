-- Where jobs go that are given up: fallback types, and dead jobs in groups of like errors. See docs/FAILURE.md.

-- The type that takes the jobs of this one whose attempts are used up; null: they are dead.
ALTER TABLE howdah.task_type ADD COLUMN fallback integer REFERENCES howdah.task_type (id) CHECK (fallback <> id);

-- Errors that differ only in numbers, ids and quoted texts are of one group: its name is the first line of
-- the error with # for these. (A Python traceback says what went wrong in its last line.) The only place
-- that knows this. Of a long line 1,000 characters are looked at, and 300 are kept.
CREATE FUNCTION howdah.error_group(error text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- In C, so that it is immutable: other collations know other letters, and change.
    line text COLLATE "C" := left(btrim(error, E' \t\r\n'), 16384);
BEGIN
    IF line IS NULL OR line = '' THEN
        RETURN '(no error text)';
    END IF;
    line := CASE WHEN starts_with(line, 'Traceback (') THEN substring(line, '[^\r\n]*$') ELSE substring(line, '^[^\r\n]*') END;
    line := left(line, 1000);
    -- What is in quotes; a ' inside of a word is an apostrophe. The cut may have taken the last quote away.
    line := regexp_replace(line, '"[^"]*("|$)', '"#"', 'g');
    line := regexp_replace(line, '`[^`]*(`|$)', '`#`', 'g');
    line := regexp_replace(line, '(?<!\w)''[^'']*''(?!\w)', '''#''', 'g');
    -- UUIDs, then hexadecimal numbers and hashes: six digits or more, of which one is a figure.
    line := regexp_replace(line, '\m[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\M', '#', 'gi');
    line := regexp_replace(line, '\m(0x[0-9a-f]+|(?=[0-9a-f]*[0-9])[0-9a-f]{6,})\M', '#', 'gi');
    -- Numbers, also 1.5 and 10:30 and 10.0.0.1; then words with a number in the middle, which are ids.
    line := regexp_replace(line, '[0-9]+([.,:][0-9]+)*', '#', 'g');
    line := regexp_replace(line, '[\w#]*[a-z]#[a-z][\w#]*', '#', 'gi');
    line := regexp_replace(line, '\s+', ' ', 'g');
    RETURN btrim(left(btrim(line), 300));
END $$;

-- Filled by itself, however a job dies: also by brokers that know nothing of it, and by SQL.
ALTER TABLE howdah.dead ADD COLUMN error_group text NOT NULL
    GENERATED ALWAYS AS (howdah.error_group(failures -> -1 ->> 'error')) STORED;
-- `died` comes along, so that counting groups reads the index only.
CREATE INDEX dead_by_error_group ON howdah.dead (type_id, error_group, id) INCLUDE (died);

-- The type that a job goes to when it is given up: the job's own fallback, else its type's. Null: none, it is
-- in its fallback already, or somebody wrote junk into its options.
CREATE FUNCTION howdah.fallback_of(of_type integer, options jsonb) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT f.id FROM howdah.task_type f
    WHERE f.id = CASE WHEN options -> 'fallback_from' IS NOT NULL THEN NULL
                      WHEN jsonb_typeof(options -> 'fallback') = 'number'
                      THEN least(greatest((options -> 'fallback')::numeric, 0), 2147483647)::integer
                      ELSE (SELECT t.fallback FROM howdah.task_type t WHERE t.id = of_type) END
      AND f.id <> of_type
$$;

-- What the options of a job say once it is in its fallback: nothing there keeps it waiting, and no stage follows.
CREATE FUNCTION howdah.in_fallback(options jsonb, from_type integer) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(options, '{}') - 'fallback' - 'limit_key' - 'fair_key' - 'start_us' - 'expire_us' - 'stages' - 'stage_payload'
        || jsonb_build_object('fallback_from', from_type)
$$;

-- The name of the type that a job had before it went to its fallback; null: it did not.
CREATE FUNCTION howdah.original_type(options jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT t.name FROM howdah.task_type t
    WHERE t.id = CASE WHEN jsonb_typeof(options -> 'fallback_from') = 'number'
                      THEN least(greatest((options -> 'fallback_from')::numeric, 0), 2147483647)::integer END
$$;
