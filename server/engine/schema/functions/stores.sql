-- Numbers of stores (docs/internals/stores.md). A store has a number, and the ids of its jobs begin with it. The number is
-- stored only as the range of the sequence of job ids, so no second value can contradict it. A database that was never numbered
-- is store 0.

-- Returns the number of ids per store, like job::IDS_OF_A_STORE in the broker; a test compares both.
CREATE OR REPLACE FUNCTION howdah.ids_of_a_store() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 100000000000000;

-- Returns the number of the store that allotted this id.
CREATE OR REPLACE FUNCTION howdah.store_of(job_id bigint) RETURNS integer LANGUAGE sql IMMUTABLE STRICT
    RETURN (job_id / howdah.ids_of_a_store())::integer;

-- Returns the number of this store.
CREATE OR REPLACE FUNCTION howdah.store_number() RETURNS integer LANGUAGE sql STABLE
    RETURN (SELECT howdah.store_of(s.seqmin) FROM pg_catalog.pg_sequence s WHERE s.seqrelid = 'howdah.job_id'::regclass);

-- Gives this store a number, from 0 to 89. Fails if the store has already allotted an id, or if a broker runs, because running
-- brokers have read the old number.
CREATE OR REPLACE FUNCTION howdah.set_store_number(number integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    running text;
BEGIN
    IF number NOT BETWEEN 0 AND 89 THEN
        RAISE EXCEPTION 'the store number must be from 0 to 89, not %', number USING ERRCODE = '22023';
    END IF;
    before := number * howdah.ids_of_a_store();
    -- OWNED BY NONE changes nothing, but its lock waits for sessions that are taking an id, and blocks others until this
    -- transaction ends.
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
        RAISE EXCEPTION 'this store has given out ids as number %, so its number cannot change', howdah.store_number() USING ERRCODE = '55000';
    END IF;
    EXECUTE format('ALTER SEQUENCE howdah.job_id MINVALUE %s MAXVALUE %s START %s RESTART',
                   before + 1, before + howdah.ids_of_a_store() - 1, before + 1);
END $$;
