-- Functions for searches.

-- Returns whether a payload is JSON in which a path finds something other than false and null. A payload that is not JSON, or
-- that Postgres cannot process, does not match. A statement timeout is not caught: it ends the search.
CREATE OR REPLACE FUNCTION howdah.has_json(payload bytea, path jsonpath) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    found jsonb;
BEGIN
    found := jsonb_path_query_first_tz(convert_from(payload, 'UTF8')::jsonb, path, '{}', true);
    RETURN found IS NOT NULL AND found NOT IN ('false', 'null');
EXCEPTION
    WHEN OTHERS THEN RETURN false;
END $$;

-- Returns whether a job matches a search by header, by text or by path; the arguments of the other criteria are null.
-- Without criteria every job matches.
CREATE OR REPLACE FUNCTION howdah.is_found(id bigint, headers jsonb, payload bytea, options jsonb, name text, value text, part bytea, path jsonpath)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN name IS NOT NULL THEN headers ->> name = value
                WHEN part IS NOT NULL THEN position(part IN howdah.payload_of(id, payload, options)) > 0
                WHEN path IS NOT NULL THEN howdah.has_json(howdah.payload_of(id, payload, options), path)
                ELSE true END
$$;

-- Returns the error of Postgres for an invalid path; null: the path is valid.
CREATE OR REPLACE FUNCTION howdah.json_path_problem(path text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM path::jsonpath;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN RETURN SQLERRM;
END $$;
