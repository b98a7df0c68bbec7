-- What the table of grants needs before it exists.

-- Makes a note that there are grants, with the first one. Plans that say otherwise are made again.
CREATE OR REPLACE FUNCTION howdah.note_grants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT howdah.has_grants() THEN
        CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN true;
    END IF;
    RETURN NULL;
END $$;
