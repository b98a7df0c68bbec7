-- Stores: the databases of one fleet (docs/internals/stores.md). A store has a number, and the ids of its jobs begin with it. The
-- range of the sequence of ids is where the number is written: there is no second place that could say something else, and a
-- database that was never numbered is store 0.

-- The ids of a store, as job::IDS_OF_A_STORE in the broker; a test compares both.
CREATE OR REPLACE FUNCTION howdah.ids_of_a_store() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 1000000000000000;

-- The number of the store that gave out this id.
CREATE OR REPLACE FUNCTION howdah.store_of(job_id bigint) RETURNS integer LANGUAGE sql IMMUTABLE STRICT
    RETURN (job_id / howdah.ids_of_a_store())::integer;

-- The number of this store.
CREATE OR REPLACE FUNCTION howdah.store_number() RETURNS integer LANGUAGE sql STABLE
    RETURN (SELECT howdah.store_of(s.seqmin) FROM pg_catalog.pg_sequence s WHERE s.seqrelid = 'howdah.job_id'::regclass);

-- Gives this store a number, from 0 to 4095, before it has given out its first id. Brokers that run know the old one.
CREATE OR REPLACE FUNCTION howdah.set_store_number(number integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    running text;
BEGIN
    IF number NOT BETWEEN 0 AND 4095 THEN
        RAISE EXCEPTION 'the number of a store is from 0 to 4095, not %', number USING ERRCODE = '22023';
    END IF;
    before := number * howdah.ids_of_a_store();
    -- Waits for those who are taking an id, and lets nobody take one until the end of this transaction.
    ALTER SEQUENCE howdah.job_id OWNED BY NONE;
    IF howdah.store_number() = number THEN
        RETURN;
    END IF;
    SELECT string_agg(to_json(b.name)::text, ', ' ORDER BY b.id) INTO running FROM howdah.broker b WHERE b.expires > now();
    IF running IS NOT NULL THEN
        RAISE EXCEPTION 'brokers run on this store, and know it as number %: stop them first: %', howdah.store_number(), running
            USING ERRCODE = '55000';
    END IF;
    IF (SELECT s.is_called FROM howdah.job_id s) THEN
        RAISE EXCEPTION 'this store has given out ids as number %, and keeps it', howdah.store_number() USING ERRCODE = '55000';
    END IF;
    EXECUTE format('ALTER SEQUENCE howdah.job_id MINVALUE %s MAXVALUE %s START %s RESTART',
                   before + 1, before + howdah.ids_of_a_store() - 1, before + 1);
END $$;
