-- Closes a store to new jobs. Existing jobs continue: retries, stages, fallbacks, jobs that wait for others.

-- Replaces the function that returns whether this store is closed.
CREATE OR REPLACE FUNCTION howdah.set_closed(closed boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF closed THEN
        CREATE OR REPLACE FUNCTION howdah.is_closed() RETURNS boolean LANGUAGE sql STABLE RETURN true;
    ELSE
        CREATE OR REPLACE FUNCTION howdah.is_closed() RETURNS boolean LANGUAGE sql STABLE RETURN false;
    END IF;
END $$;

-- Closes this store; store_name is its name in the broker's configuration. Returns the new version of the settings; null: the
-- store was already closed.
CREATE OR REPLACE FUNCTION howdah.close_store(store_name text, by_whom text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    UPDATE howdah.settings s SET version = s.version + 1, closed = now(), closed_name = store_name, closed_by = by_whom
    WHERE s.closed IS NULL
    RETURNING s.version INTO new_version;
    IF FOUND THEN
        PERFORM howdah.set_closed(true);
    END IF;
    RETURN new_version;
END $$;

-- Opens this store. Returns the new version of the settings; null: the store was already open.
CREATE OR REPLACE FUNCTION howdah.open_store() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    UPDATE howdah.settings s SET version = s.version + 1, closed = NULL, closed_name = NULL, closed_by = NULL
    WHERE s.closed IS NOT NULL
    RETURNING s.version INTO new_version;
    IF FOUND THEN
        PERFORM howdah.set_closed(false);
    END IF;
    RETURN new_version;
END $$;

-- Raises the error for new jobs in a closed store, and names the command that opens the store. The message does not say who
-- closed the store, because only callers that may list stores may know. Statements call this function in a CASE on is_closed,
-- which Postgres removes from their plans while the store is open.
CREATE OR REPLACE FUNCTION howdah.refuse_closed() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    RAISE EXCEPTION 'store % is closed to new jobs since %', s.closed_name, to_char(s.closed AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
        USING ERRCODE = 'HW005', HINT = format('howdah store open %s', s.closed_name);
END $$;
