-- Look-ups of finished jobs by id in only the history partitions that may contain them. A statement over all of history locks
-- every partition and each of its indexes, and may exhaust the lock table of the server (max_locks_per_transaction for each
-- connection).

-- Stores the id range of one partition of a past day; returns false if all such partitions have a range. Before it reads the
-- ids, it creates a trigger that widens the range for later rows. Creating the trigger waits for transactions that write to the
-- partition.
CREATE OR REPLACE FUNCTION howdah.record_id_range() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text;
BEGIN
    -- Use EXCEPT instead of a join: Postgres hashes both sides even if its table statistics are wrong.
    SELECT d.relname INTO part FROM (
        SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('howdah.history'::regclass, 'howdah.payload'::regclass) AND c.relname ~ '_[0-9]{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < (now() AT TIME ZONE 'UTC')::date - 1
        EXCEPT SELECT r.part FROM howdah.id_range r) d
    ORDER BY 1 LIMIT 1;
    IF part IS NULL THEN
        DELETE FROM howdah.id_range r WHERE NOT howdah.has_table(r.part);
        RETURN false;
    END IF;
    PERFORM howdah.lock_partitions();
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('CREATE OR REPLACE TRIGGER widen_ids AFTER INSERT ON howdah.%I FOR EACH ROW EXECUTE FUNCTION howdah.widen_ids()', part);
    EXECUTE format('ALTER TABLE howdah.%I ENABLE ALWAYS TRIGGER widen_ids', part);
    EXECUTE format('INSERT INTO howdah.id_range (part, first_id, last_id) SELECT $1, min(id), max(id) FROM howdah.%I '
                   'ON CONFLICT DO NOTHING', part) USING part;
    RETURN true;
END $$;

-- Trigger function: widens the id range of a past day when a row is added to its partition.
CREATE OR REPLACE FUNCTION howdah.widen_ids() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE howdah.id_range r SET first_id = least(r.first_id, NEW.id), last_id = greatest(r.last_id, NEW.id)
    WHERE r.part = TG_TABLE_NAME AND (r.first_id IS NULL OR NEW.id NOT BETWEEN r.first_id AND r.last_id);
    RETURN NULL;
END $$;

-- Returns the finished jobs with these ids.
CREATE OR REPLACE FUNCTION howdah.history_of(ids bigint[]) RETURNS SETOF howdah.history LANGUAGE plpgsql STABLE AS $$
DECLARE
    part text;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN;
    END IF;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid LEFT JOIN howdah.id_range r ON r.part = c.relname::text
        WHERE i.inhparent = 'howdah.history'::regclass
          AND (r.part IS NULL OR EXISTS (SELECT FROM unnest(ids) u(id) WHERE u.id BETWEEN r.first_id AND r.last_id))
    LOOP
        BEGIN
            RETURN QUERY EXECUTE format('SELECT * FROM howdah.%I h WHERE h.id = ANY ($1)', part) USING ids;
        EXCEPTION WHEN undefined_table THEN
            NULL; -- The partition has just been dropped.
        END;
    END LOOP;
END $$;

-- Returns the states and results of the jobs with these ids. Jobs that the database does not contain have no row.
CREATE OR REPLACE FUNCTION howdah.results_of(ids bigint[]) RETURNS TABLE (id bigint, state text, result bytea) LANGUAGE sql STABLE AS $$
    SELECT h.id, h.outcome::text, h.result FROM howdah.history_of(ids) h
    UNION ALL SELECT j.id, 'dead', NULL FROM howdah.dead j WHERE j.id = ANY (ids)
    -- A dead dependency may have been retried after its dependent became ready.
    UNION ALL SELECT j.id, 'ready', NULL FROM howdah.ready j WHERE j.id = ANY (ids)
    UNION ALL SELECT j.id, 'leased', NULL FROM howdah.leased j WHERE j.id = ANY (ids)
    UNION ALL SELECT j.id, 'scheduled', NULL FROM howdah.scheduled j WHERE j.id = ANY (ids)
    UNION ALL SELECT j.id, 'waiting', NULL FROM howdah.waiting j WHERE j.id = ANY (ids)
$$;
