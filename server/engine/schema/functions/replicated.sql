-- Corrects state that logical replication does not copy, because it only copies rows: sequences, and the functions is_closed
-- and has_grants, which return a constant. On the new server they have the values of a new database. Without a correction,
-- sequences would allot ids that exist already.

-- Returns the highest job id of unfinished jobs and of jobs that finished in the last three days. Fast enough for each start of
-- a broker.
CREATE OR REPLACE FUNCTION howdah.highest_recent_job(low bigint, high bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    since text := to_char(now() - interval '3 days', 'YYYYMMDD');
    part regclass;
    finished bigint;
BEGIN
    -- Reads each partition by name, with one look-up in its index. A query on the parent table would lock older partitions too.
    FOR part IN SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'howdah.history'::regclass
                  AND coalesce(substring(c.relname FROM '[0-9]+$') >= left(since, length(substring(c.relname FROM '[0-9]+$'))), true) LOOP
        EXECUTE format('SELECT greatest($1, max(h.id)) FROM %s h WHERE h.id BETWEEN $2 AND $3', part) INTO finished USING finished, low, high;
    END LOOP;
    RETURN greatest(finished,
        (SELECT max(j.id) FROM howdah.ready j WHERE j.id BETWEEN low AND high), (SELECT max(j.id) FROM howdah.leased j WHERE j.id BETWEEN low AND high),
        (SELECT max(j.id) FROM howdah.scheduled j WHERE j.id BETWEEN low AND high), (SELECT max(j.id) FROM howdah.waiting j WHERE j.id BETWEEN low AND high),
        (SELECT max(j.id) FROM howdah.dead j WHERE j.id BETWEEN low AND high));
END $$;

-- Returns the highest job id in all rows, also in rows that only refer to a job: a new job must not get an id that a key or a
-- request still refers to. highest_ids: the highest job ids of the job tables, if the caller has read them; null: this function
-- reads them.
CREATE OR REPLACE FUNCTION howdah.highest_job(low bigint, high bigint, highest_ids bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    -- A separate statement, which is not planned if the ids are known: with many partitions, planning takes most of the time.
    IF highest_ids IS NULL THEN
        highest_ids := ARRAY(
            SELECT max(j.id) FROM howdah.ready j WHERE j.id BETWEEN low AND high
            UNION ALL SELECT max(j.id) FROM howdah.leased j WHERE j.id BETWEEN low AND high
            UNION ALL SELECT max(j.id) FROM howdah.scheduled j WHERE j.id BETWEEN low AND high
            UNION ALL SELECT max(j.id) FROM howdah.waiting j WHERE j.id BETWEEN low AND high
            UNION ALL SELECT max(j.id) FROM howdah.dead j WHERE j.id BETWEEN low AND high
            UNION ALL SELECT max(h.id) FROM howdah.history h WHERE h.id BETWEEN low AND high);
    END IF;
    RETURN (
        SELECT max(i.id) FROM (
            SELECT unnest(highest_ids) AS id
            UNION ALL SELECT greatest(k.job_id, k.next_id) FROM howdah.job_key k
            UNION ALL SELECT unnest(q.ids) FROM howdah.request q
            UNION ALL SELECT greatest(d.after_id, d.job_id) FROM howdah.dependency d
            UNION ALL SELECT s.last_job_id FROM howdah.schedule s
            UNION ALL SELECT b.last_job_id FROM howdah.bulk b
            UNION ALL SELECT upper(f.ids) - 1 FROM howdah.archive_file f
            UNION ALL SELECT m.old_id FROM howdah.moved m
            UNION ALL SELECT a.new_id FROM howdah.arrived a
        ) i WHERE i.id BETWEEN low AND high);
END $$;

-- Returns the highest id among the last rows of the audit, whose ids rise with their times.
CREATE OR REPLACE FUNCTION howdah.highest_audit() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := CASE WHEN pg_sequence_last_value('howdah.audit_id') IS NULL THEN '-infinity' ELSE now() - interval '3 days' END;
    highest bigint;
BEGIN
    EXECUTE format('SELECT max(l.id) FROM (SELECT a.id FROM howdah.audit a WHERE a.time >= %L ORDER BY a.time DESC LIMIT 1000) l', since)
        INTO highest;
    RETURN highest;
END $$;

-- Moves a sequence past this value; returns false if the sequence is already past it.
CREATE OR REPLACE FUNCTION howdah.move_past(sequence regclass, highest bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF highest <= coalesce(pg_sequence_last_value(sequence), 0) OR highest IS NULL THEN
        RETURN false;
    END IF;
    -- ALTER SEQUENCE with the same value changes nothing, but its lock keeps other sessions from taking a value until this
    -- transaction ends.
    EXECUTE format('ALTER SEQUENCE %s CACHE 1', sequence);
    IF highest <= coalesce(pg_sequence_last_value(sequence), 0) THEN
        RETURN false;
    END IF;
    PERFORM setval(sequence, highest);
    RETURN true;
END $$;

-- Returns the sequences of ids, and the highest stored id of each. highest_ids: as for highest_job.
CREATE OR REPLACE FUNCTION howdah.stored_ids(highest_ids bigint[] DEFAULT NULL) RETURNS TABLE (sequence regclass, highest bigint)
LANGUAGE plpgsql AS $$
DECLARE
    low bigint;
    high bigint;
    last_job bigint := pg_sequence_last_value('howdah.job_id');
    job bigint;
BEGIN
    SELECT s.seqmin, s.seqmax INTO low, high FROM pg_sequence s WHERE s.seqrelid = 'howdah.job_id'::regclass;
    IF last_job IS NOT NULL THEN
        job := howdah.highest_recent_job(low, high);
    END IF;
    IF last_job IS NULL OR job > last_job THEN
        job := howdah.highest_job(low, high, highest_ids);
    END IF;
    RETURN QUERY
        SELECT 'howdah.job_id'::regclass, job
        UNION ALL SELECT 'howdah.broker_id', greatest((SELECT max(b.id) FROM howdah.broker b), (SELECT max(l.broker_id) FROM howdah.leased l))
        UNION ALL SELECT 'howdah.bulk_id', (SELECT max(b.id) FROM howdah.bulk b)
        UNION ALL SELECT 'howdah.audit_id', howdah.highest_audit()
        UNION ALL SELECT pg_get_serial_sequence('howdah.task_type', 'id')::regclass, (SELECT max(t.id) FROM howdah.task_type t);
END $$;

-- Corrects sequences and the constant functions is_closed and has_grants to match the stored rows. Brokers call it when they
-- start. Returns descriptions of the changes.
CREATE OR REPLACE FUNCTION howdah.sync_state_with_rows() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    highest_ids bigint[];
    stored integer[];
    s record;
BEGIN
    IF pg_sequence_last_value('howdah.job_id') IS NULL THEN
        -- The ids of the stored jobs determine the number of this store (functions/stores.sql).
        highest_ids := ARRAY(
            (SELECT id FROM howdah.ready ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM howdah.leased ORDER BY id DESC LIMIT 1)
            UNION ALL (SELECT id FROM howdah.scheduled ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM howdah.waiting ORDER BY id DESC LIMIT 1)
            UNION ALL (SELECT id FROM howdah.dead ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM howdah.history ORDER BY id DESC LIMIT 1));
        stored := ARRAY(SELECT DISTINCT howdah.store_of(i) FROM unnest(highest_ids) i);
        IF cardinality(stored) > 1 THEN
            RAISE EXCEPTION 'the jobs of this database have ids of the stores %, but its sequence job_id was never used',
                array_to_string(stored, ' and ') USING ERRCODE = '55000', HINT = 'Copy the database of a single store.';
        ELSIF stored[1] <> howdah.store_number() THEN
            PERFORM howdah.set_store_number(stored[1]);
            RETURN NEXT format('the store number is set to %s, as in the ids of its jobs', stored[1]);
        END IF;
    END IF;
    FOR s IN SELECT * FROM howdah.stored_ids(highest_ids) LOOP
        IF howdah.move_past(s.sequence, s.highest) THEN
            RETURN NEXT format('sequence %s continues after %s, the highest stored id', s.sequence, s.highest);
        END IF;
    END LOOP;
    IF (EXISTS (SELECT FROM howdah.grants), (SELECT o.closed IS NOT NULL FROM howdah.settings o)) <> (howdah.has_grants(), howdah.is_closed()) THEN
        -- The lock keeps two brokers from replacing a function at once. A broker that waited here finds the function replaced.
        LOCK TABLE howdah.schema_part IN EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM howdah.grants) AND NOT howdah.has_grants() THEN
            CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN true;
            RETURN NEXT 'the grants are in force';
        END IF;
        IF (SELECT o.closed IS NOT NULL FROM howdah.settings o) <> howdah.is_closed() THEN
            PERFORM howdah.set_closed(NOT howdah.is_closed());
            RETURN NEXT 'the store is ' || CASE WHEN howdah.is_closed() THEN 'closed' ELSE 'open' END;
        END IF;
    END IF;
END $$;
