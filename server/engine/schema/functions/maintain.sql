-- Creates and drops day partitions, and deletes history of task types with a shorter retention than others.

-- Lets one broker at a time create and drop partitions; the other brokers wait, and then find nothing left to do. This lock on
-- history blocks no acks, because it does not conflict with reads and writes. Only roles that may write to history can take it;
-- every role can take an advisory lock.
CREATE OR REPLACE FUNCTION howdah.lock_partitions() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE ONLY howdah.history IN SHARE UPDATE EXCLUSIVE MODE;
END $$;

-- Returns whether there is a table of this name.
CREATE OR REPLACE FUNCTION howdah.has_table(name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_class c WHERE c.relname = name
                   AND c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass))
$$;

-- If the parent has no primary key, gives a new partition the replica identity of the parent, because Postgres does not do so.
-- Revokes rights that come from default privileges, because only the owner uses partitions by name.
CREATE OR REPLACE FUNCTION howdah.prepare_partition(parent text, part text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    grantee oid;
BEGIN
    IF (SELECT c.relreplident FROM pg_class c WHERE c.oid = format('howdah.%I', parent)::regclass) = 'f' THEN
        EXECUTE format('ALTER TABLE howdah.%I REPLICA IDENTITY FULL', part);
    END IF;
    FOR grantee IN SELECT DISTINCT a.grantee FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
                   WHERE c.oid = format('howdah.%I', part)::regclass AND a.grantee <> c.relowner LOOP
        EXECUTE format('REVOKE ALL ON howdah.%I FROM %s', part,
                       CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END);
    END LOOP;
END $$;

-- Creates the default partition, which takes rows of days without a partition, if it was dropped by hand.
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
    PERFORM howdah.prepare_partition(parent, parent || '_default');
    IF parent = 'audit' THEN
        CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit_default
            FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
    END IF;
END $$;

-- Returns whether the default partition of a table is too large to be scanned under an exclusive lock.
CREATE OR REPLACE FUNCTION howdah.has_large_default(parent text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_table_size(format('howdah.%I', parent || '_default')) > 64 * 1024 * 1024
$$;

-- Creates the partition of one day (UTC) of a table that is partitioned by this column. Rows of that day that went to the
-- default partition, because the day's partition was missing, are moved to it. Rows of the audit are never moved, so a day of
-- the audit with such rows gets no partition. Returns false if the partition exists already or cannot be created. Returns null
-- if the default partition is large, because attaching the new one would scan it under an exclusive lock. Then rows of past
-- days and of today stay in the default partition until they expire, and a later day needs exclude_from_default and
-- validate_default first. at_any_size: creates the partition even if the default partition is large.
CREATE OR REPLACE FUNCTION howdah.move_day(parent text, by_column text, day date, at_any_size boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || to_char(day, '_YYYYMMDD');
    default_part text := parent || '_default';
    from_time timestamptz := day::timestamp AT TIME ZONE 'UTC';
    to_time timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    of_day text := format('%1$I >= %2$L AND %1$I < %3$L', by_column, from_time, to_time);
    moving text := format('WITH moved AS (DELETE FROM howdah.%2$I WHERE %3$s RETURNING *) INSERT INTO howdah.%1$I SELECT * FROM moved',
                        part, default_part, of_day);
    is_excluded_day boolean;
    has_rows boolean;
BEGIN
    PERFORM howdah.make_default_partition(parent);
    IF howdah.has_table(part) THEN
        RETURN false;
    END IF;
    is_excluded_day := coalesce(howdah.is_excluded(parent, day), false);
    IF howdah.has_large_default(parent) AND NOT is_excluded_day AND NOT at_any_size THEN
        RETURN NULL;
    END IF;
    PERFORM howdah.lock_partitions();
    IF howdah.has_table(part) THEN
        RETURN false;
    END IF;
    -- Give up after 200 ms: while a lock request waits for a long reader, all readers and writers of the table wait behind it.
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('CREATE TABLE howdah.%I (LIKE howdah.%I INCLUDING ALL)', part, parent);
    PERFORM howdah.prepare_partition(parent, part);
    IF at_any_size THEN
        -- Move most rows before the default partition is locked, to keep the exclusive lock short.
        EXECUTE moving;
    END IF;
    -- The lock keeps rows of this day from arriving in the default partition between the move and the ATTACH.
    EXECUTE format('LOCK TABLE howdah.%I IN ACCESS EXCLUSIVE MODE', default_part);
    IF parent = 'audit' THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM howdah.%I WHERE %s)', default_part, of_day) INTO has_rows;
        IF has_rows THEN
            EXECUTE format('DROP TABLE howdah.%I', part);
            RETURN false;
        END IF;
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change()', part);
    ELSIF NOT is_excluded_day THEN
        EXECUTE moving;
    END IF;
    EXECUTE format('ALTER TABLE howdah.%I ATTACH PARTITION howdah.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, part, from_time, to_time);
    IF howdah.is_excluded(parent, day) IS NOT NULL THEN
        EXECUTE format('ALTER TABLE howdah.%I DROP CONSTRAINT %I', default_part, to_char(day, '"not_"YYYYMMDD'));
    END IF;
    RETURN true;
END $$;

-- Creates a day partition, and moves rows to it, if the default partition is small.
CREATE OR REPLACE FUNCTION howdah.make_day_partition(parent text, by_column text, day date) RETURNS boolean LANGUAGE sql AS $$
    SELECT howdah.move_day(parent, by_column, day, false)
$$;

-- Returns whether the constraint of the default partition that excludes this day is validated; null: the constraint does not
-- exist.
CREATE OR REPLACE FUNCTION howdah.is_excluded(parent text, day date) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT c.convalidated FROM pg_constraint c
    WHERE c.conrelid = to_regclass(format('howdah.%I', parent || '_default')) AND c.conname = to_char(day, '"not_"YYYYMMDD')
$$;

-- Adds a constraint that excludes a day that has not begun from the default partition. After validate_default has validated it,
-- which blocks neither readers nor writers, attaching the day's partition need not scan the default partition. Returns false if
-- the day has begun.
CREATE OR REPLACE FUNCTION howdah.exclude_from_default(parent text, by_column text, day date) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF day <= (now() AT TIME ZONE 'UTC')::date THEN
        RETURN false;
    END IF;
    PERFORM howdah.lock_partitions();
    IF howdah.is_excluded(parent, day) IS NULL THEN
        PERFORM set_config('lock_timeout', '200ms', true);
        EXECUTE format('ALTER TABLE howdah.%1$I ADD CONSTRAINT %2$I CHECK (%3$I < %4$L OR %3$I >= %5$L) NOT VALID',
                       parent || '_default', to_char(day, '"not_"YYYYMMDD'), by_column,
                       day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    END IF;
    RETURN true;
END $$;

-- Validates the constraint that exclude_from_default has added.
CREATE OR REPLACE FUNCTION howdah.validate_default(parent text, day date) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE howdah.%I VALIDATE CONSTRAINT %I', parent || '_default', to_char(day, '"not_"YYYYMMDD'));
END $$;

-- Deletes rows that have expired from some blocks of a default partition. Payloads and tags of jobs that still exist stay. With
-- an archive, history stays until the archive creates a partition for it. next_block is the first block of the next call; null:
-- nothing is left.
CREATE OR REPLACE FUNCTION howdah.delete_from_default(parent text, by_column text, days_kept integer, first_block bigint, blocks bigint,
                                           OUT deleted bigint, OUT next_block bigint) LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || '_default';
    before date := (now() AT TIME ZONE 'UTC')::date - CASE WHEN parent IN ('history', 'bulk_change')
        THEN greatest(days_kept, (SELECT max(t.history_days) FROM howdah.task_type t)) ELSE days_kept END;
BEGIN
    deleted := 0;
    IF NOT howdah.has_table(part) OR parent = 'history' AND EXISTS (SELECT FROM howdah.archive_target) THEN
        RETURN;
    END IF;
    IF pg_relation_size('howdah.' || part) > (first_block + blocks) * current_setting('block_size')::bigint THEN
        next_block := first_block + blocks;
    END IF;
    EXECUTE format('WITH deleted AS (DELETE FROM howdah.%I d WHERE ctid >= %L::tid AND ctid < %L::tid AND %I < %L%s RETURNING 1) '
                   'SELECT count(*) FROM deleted',
                   part, format('(%s,0)', first_block), format('(%s,0)', first_block + blocks),
                   by_column, before::timestamp AT TIME ZONE 'UTC',
                   CASE WHEN parent IN ('payload', 'job_tag') THEN ' AND NOT howdah.has_job(d.id)' ELSE '' END)
        INTO deleted;
END $$;

-- Returns whether there is a job with this id in any state.
CREATE OR REPLACE FUNCTION howdah.has_job(job bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.ready j WHERE j.id = job) OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = job)
        OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = job) OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = job)
        OR EXISTS (SELECT FROM howdah.dead j WHERE j.id = job) OR EXISTS (SELECT FROM howdah.history j WHERE j.id = job)
$$;

-- Returns the partitions of a table before this day, to be dropped in this transaction.
CREATE OR REPLACE FUNCTION howdah.partitions_before(parent text, before date) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM howdah.lock_partitions();
    -- Give up after 200 ms; a later call tries again. While the drop waits for a long reader, every writer waits behind it.
    PERFORM set_config('lock_timeout', '200ms', true);
    RETURN QUERY SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = format('howdah.%I', parent)::regclass AND c.relname ~ format('^%s_[0-9]{8}$', parent)
                   AND to_date(right(c.relname, 8), 'YYYYMMDD') < before;
END $$;

-- Drops the history partitions before this day; with an archive, only partitions of archived days.
CREATE OR REPLACE FUNCTION howdah.drop_history_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    day date;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('history', before) LOOP
        day := to_date(right(part, 8), 'YYYYMMDD');
        CONTINUE WHEN NOT howdah.may_delete_day(day);
        -- The lock waits for transactions that write to the partition. Jobs that they added are recorded as late, so repeat the
        -- check after the lock.
        EXECUTE format('LOCK TABLE howdah.%I IN ACCESS EXCLUSIVE MODE', part);
        CONTINUE WHEN NOT howdah.may_delete_day(day);
        EXECUTE format('DROP TABLE howdah.%I', part);
        UPDATE howdah.archive a SET state = 'dropped' WHERE a.day = to_date(right(part, 8), 'YYYYMMDD');
        dropped := dropped + 1;
    END LOOP;
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
    RETURN dropped;
END $$;

-- Drops the partitions of payloads before this day. The few payloads whose jobs still exist (they waited or ran for days, or
-- are dead) are copied into the partition of the current day.
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

-- Deletes jobs and their payloads from some blocks of one day's history: the jobs of these types, or with `keep` the jobs of
-- all other types. With an archive, it deletes only archived jobs. next_block is the first block of the next call; null:
-- nothing is left.
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
