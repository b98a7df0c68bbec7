-- A large payload is written once, beside the job, and does not move with it from table to table: over
-- the life of a job of 64 KiB that is 1.1 bytes of WAL a byte instead of 2.2 (straight to the worker)
-- or 3.3 (through ready). Such a job has an empty payload and its size in options ->> 'payload_bytes';
-- so what moves jobs need not know. See docs/ARCHITECTURE.md.
CREATE TABLE howdah.payload (
    id       bigint NOT NULL,            -- the job's
    created  timestamptz NOT NULL,
    data     bytea NOT NULL
) PARTITION BY RANGE (created);
CREATE INDEX payload_by_id ON howdah.payload (id);
CREATE TABLE howdah.payload_default PARTITION OF howdah.payload DEFAULT;
ALTER TABLE howdah.payload ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE howdah.payload_default ALTER COLUMN data SET STORAGE EXTERNAL;

-- Which succeeded jobs go to history; null: all. Jobs that ended otherwise always do.
ALTER TABLE howdah.task_type ADD COLUMN history text CHECK (history IN ('full', 'failures', 'none'));

-- The payload of a job, wherever it is.
CREATE FUNCTION howdah.payload_of(job_id bigint, payload bytea, options jsonb) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN options -> 'payload_bytes' IS NULL THEN payload
                ELSE coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = job_id LIMIT 1), payload) END
$$;

-- Its size: an integer (a sum of bigint is numeric, and slow), and 1 GiB at most, whatever somebody wrote
-- into options: one row must not fail the claim of all.
CREATE FUNCTION howdah.payload_size(payload bytea, options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 1073741824)::integer
                ELSE octet_length(payload) END
$$;

-- Makes the partition of one day (UTC) of a table that is split by this column. Rows of that day that went
-- to the default partition, because nobody made theirs in time, are moved. In the place of
-- make_history_partition, which knew one table only.
DROP FUNCTION howdah.make_history_partition(date);
CREATE FUNCTION howdah.make_day_partition(parent text, by_column text, day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || to_char(day, '_YYYYMMDD');
    from_time timestamptz := day::timestamp AT TIME ZONE 'UTC';
    to_time timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    -- One broker at a time; the others find it done. The lock of the functions that drop.
    PERFORM pg_advisory_xact_lock(hashtext('howdah.make_history_partition'));
    IF EXISTS (SELECT FROM pg_class WHERE relname = part
               AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'howdah.history'::regclass)) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE howdah.%I (LIKE howdah.%I INCLUDING ALL)', part, parent);
    EXECUTE format('WITH moved AS (DELETE FROM howdah.%2$I WHERE %3$I >= %4$L AND %3$I < %5$L RETURNING *) '
                   'INSERT INTO howdah.%1$I SELECT * FROM moved', part, parent || '_default', by_column, from_time, to_time);
    EXECUTE format('ALTER TABLE howdah.%I ATTACH PARTITION howdah.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, part, from_time, to_time);
    RETURN true;
END $$;

-- Drops the payloads of days before this one. The few whose jobs are still there (they waited or ran for
-- days, or are dead) are written anew, into the partition of today.
CREATE FUNCTION howdah.drop_payload_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('howdah.make_history_partition'));
    PERFORM set_config('lock_timeout', '200ms', true);
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'howdah.payload'::regclass AND c.relname ~ '^payload_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') < before LOOP
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

-- As before, with the payload from where it is.
CREATE OR REPLACE VIEW howdah.job AS
SELECT j.id, t.name AS task_type, j.state, j.priority, j.attempt, j.max_attempts, j.key,
       j.created, j.run_at, j.leased_at, j.finished, j.deadline, j.headers, j.failures,
       howdah.payload_of(j.id, j.payload, j.options) AS payload, j.result, j.type_id
FROM (
    SELECT id, type_id, 'ready'::text AS state, priority, attempt, max_attempts,
           key, created, NULL::timestamptz AS run_at, NULL::timestamptz AS leased_at,
           NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, failures, payload,
           NULL::bytea AS result, options
    FROM howdah.ready
    UNION ALL
    SELECT id, type_id, 'leased', priority, attempt, max_attempts, key, created, NULL, leased_at,
           NULL, deadline, headers, failures, payload, NULL, options
    FROM howdah.leased
    UNION ALL
    SELECT id, type_id, 'scheduled', priority, attempt, max_attempts, key, created, run_at,
           leased_at, NULL, NULL, headers, failures, payload, NULL, options
    FROM howdah.scheduled
    UNION ALL
    SELECT id, type_id, 'waiting', priority, attempt, max_attempts, key, created, NULL, NULL,
           NULL, NULL, headers, failures, payload, NULL, options
    FROM howdah.waiting
    UNION ALL
    SELECT id, type_id, 'dead', priority, attempt, max_attempts, key, created, NULL, leased_at,
           died, NULL, headers, failures, payload, NULL, options
    FROM howdah.dead
    UNION ALL
    SELECT id, type_id,
           CASE outcome WHEN 6 THEN 'succeeded' WHEN 7 THEN 'cancelled' WHEN 8 THEN 'expired'
                        ELSE 'discarded' END,
           priority, attempt, max_attempts, key, created, NULL, leased_at, finished, NULL, headers,
           failures, payload, result, options
    FROM howdah.history
) j
JOIN howdah.task_type t ON t.id = j.type_id;
