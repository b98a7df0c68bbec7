-- Partitions, and the history that types keep for fewer days than others.

-- One broker at a time makes and drops partitions; the others find it done. Acks go on: this lock of history conflicts with
-- itself and with changes of the table, and nobody can take it who may not write there.
CREATE OR REPLACE FUNCTION howdah.lock_partitions() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE ONLY howdah.history IN SHARE UPDATE EXCLUSIVE MODE;
END $$;

-- Whether there is a table of this name.
CREATE OR REPLACE FUNCTION howdah.has_table(name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_class c WHERE c.relname = name
                   AND c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass))
$$;

-- Makes the partition for rows of days that have none, if somebody has dropped it.
CREATE OR REPLACE FUNCTION howdah.make_default_partition(parent text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF howdah.has_table(parent || '_default') THEN
        RETURN;
    END IF;
    PERFORM howdah.lock_partitions();
    IF howdah.has_table(parent || '_default') THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('CREATE TABLE howdah.%I PARTITION OF howdah.%I DEFAULT', parent || '_default', parent);
    IF parent = 'audit' THEN
        CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit_default
            FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
    END IF;
END $$;

-- Makes the partition of one day (UTC) of a table that is split by this column. Rows of that day that went to the default
-- partition, because nobody made theirs in time, are moved. False: it is there.
CREATE OR REPLACE FUNCTION howdah.make_day_partition(parent text, by_column text, day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || to_char(day, '_YYYYMMDD');
    from_time timestamptz := day::timestamp AT TIME ZONE 'UTC';
    to_time timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    PERFORM howdah.make_default_partition(parent);
    IF howdah.has_table(part) THEN
        RETURN false;
    END IF;
    PERFORM howdah.lock_partitions();
    IF howdah.has_table(part) THEN
        RETURN false;
    END IF;
    -- While this waits for a long reader, others wait behind it.
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('CREATE TABLE howdah.%I (LIKE howdah.%I INCLUDING ALL)', part, parent);
    EXECUTE format('WITH moved AS (DELETE FROM howdah.%2$I WHERE %3$I >= %4$L AND %3$I < %5$L RETURNING *) '
                   'INSERT INTO howdah.%1$I SELECT * FROM moved', part, parent || '_default', by_column, from_time, to_time);
    EXECUTE format('ALTER TABLE howdah.%I ATTACH PARTITION howdah.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, part, from_time, to_time);
    RETURN true;
END $$;

-- The partitions of a table before this day, to be dropped in this transaction.
CREATE OR REPLACE FUNCTION howdah.partitions_before(parent text, before date) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM howdah.lock_partitions();
    -- A reader of old rows must not stop every writer behind our lock: give up, and try again later.
    PERFORM set_config('lock_timeout', '200ms', true);
    RETURN QUERY SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = format('howdah.%I', parent)::regclass AND c.relname ~ format('^%s_[0-9]{8}$', parent)
                   AND to_date(right(c.relname, 8), 'YYYYMMDD') < before;
END $$;

-- Drops the partitions of history before this day. With an archive, only of days that are archived; and rows without a
-- partition stay, until the archive makes one for them.
CREATE OR REPLACE FUNCTION howdah.drop_history_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    day date;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('history', before) LOOP
        day := to_date(right(part, 8), 'YYYYMMDD');
        CONTINUE WHEN NOT howdah.may_delete_day(day);
        -- Whoever is writing to it has ended then, and what they wrote is noted as late.
        EXECUTE format('LOCK TABLE howdah.%I IN ACCESS EXCLUSIVE MODE', part);
        CONTINUE WHEN NOT howdah.may_delete_day(day);
        EXECUTE format('DROP TABLE howdah.%I', part);
        UPDATE howdah.archive a SET state = 'dropped' WHERE a.day = to_date(right(part, 8), 'YYYYMMDD');
        dropped := dropped + 1;
    END LOOP;
    IF NOT EXISTS (SELECT FROM howdah.archive_target) THEN
        DELETE FROM howdah.history_default WHERE finished < before::timestamp AT TIME ZONE 'UTC';
    END IF;
    RETURN dropped;
END $$;

-- Drops the partitions of the journal of bulk operations before this day.
CREATE OR REPLACE FUNCTION howdah.drop_bulk_change_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('bulk_change', before) LOOP
        EXECUTE format('DROP TABLE howdah.%I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM howdah.bulk_change_default WHERE changed < before::timestamp AT TIME ZONE 'UTC';
    RETURN dropped;
END $$;

-- Drops the partitions of payloads before this day. The few payloads whose jobs still exist (they waited or ran for days,
-- or are dead) are copied into the partition of the current day.
CREATE OR REPLACE FUNCTION howdah.drop_payload_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('payload', before) LOOP
        EXECUTE format(
            'INSERT INTO howdah.payload (id, created, data) SELECT p.id, now(), p.data FROM howdah.%I p '
            'WHERE EXISTS (SELECT FROM howdah.dead j WHERE j.id = p.id) '
               'OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = p.id) '
               'OR EXISTS (SELECT FROM howdah.ready j WHERE j.id = p.id) '
               'OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = p.id) '
               'OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = p.id) '
               'OR EXISTS (SELECT FROM howdah.history j WHERE j.id = p.id)', part);
        EXECUTE format('DROP TABLE howdah.%I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

-- Drops the partitions of tags before this day. Rows of jobs that still exist, finished or not, are copied like payloads.
CREATE OR REPLACE FUNCTION howdah.drop_tag_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('job_tag', before) LOOP
        EXECUTE format(
            'INSERT INTO howdah.job_tag (id, created, hash, type_id) SELECT t.id, now(), t.hash, t.type_id FROM howdah.%I t '
            'WHERE EXISTS (SELECT FROM howdah.dead j WHERE j.id = t.id) '
               'OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = t.id) '
               'OR EXISTS (SELECT FROM howdah.ready j WHERE j.id = t.id) '
               'OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = t.id) '
               'OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = t.id) '
               'OR EXISTS (SELECT FROM howdah.history j WHERE j.id = t.id)', part);
        EXECUTE format('DROP TABLE howdah.%I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

-- Deletes jobs and their payloads from some blocks of one day's history: the jobs of these types, or (keep) those of all
-- other types. With an archive, only what is archived. next_block is the first block for the next call; null: nothing is left.
CREATE OR REPLACE FUNCTION howdah.prune_history(day date, types integer[], keep boolean, first_block bigint, blocks bigint,
                                     OUT deleted bigint, OUT next_block bigint) LANGUAGE plpgsql AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
BEGIN
    deleted := 0;
    IF to_regclass('howdah.' || part) IS NULL OR NOT howdah.may_delete_day(day) THEN
        RETURN;
    END IF;
    IF pg_relation_size('howdah.' || part) > (first_block + blocks) * current_setting('block_size')::bigint THEN
        next_block := first_block + blocks;
    END IF;
    EXECUTE format(
        'WITH deleted AS (DELETE FROM howdah.%I h WHERE ctid >= %L::tid AND ctid < %L::tid AND (type_id = ANY ($1)) <> $2 '
                      'AND NOT EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = $3 AND l.id = h.id) '
                      'RETURNING id, options), '
        'out_of_line AS (DELETE FROM howdah.payload WHERE id = ANY (ARRAY('
                      'SELECT id FROM deleted WHERE options ? ''payload_bytes''))) '
        'SELECT count(*) FROM deleted', part, format('(%s,0)', first_block), format('(%s,0)', first_block + blocks))
        INTO deleted USING types, keep, day;
END $$;
