-- Functions that the definition of the table grants uses, so they are created before the table.

-- Trigger function: makes has_grants() return true after the first grant. Postgres then replans statements into which it had
-- inlined the old value.
CREATE OR REPLACE FUNCTION howdah.enforce_grants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT howdah.has_grants() THEN
        CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN true;
    END IF;
    RETURN NULL;
END $$;
