-- A job's state is the table it is in (docs/ARCHITECTURE.md). Every table starts with the same
-- columns, widest first so that no padding is stored; columns that few jobs use are null, which
-- costs a bit. `howdah.` is replaced by the configured schema.

CREATE SEQUENCE howdah.job_id AS bigint;
CREATE SEQUENCE howdah.broker_id AS integer;
-- One row; its version is bumped in the transaction that changes a task type's settings, so that
-- brokers see in their sweep that they must read them again. (Not a sequence: that is visible
-- before the change is.)
CREATE TABLE howdah.settings (version bigint NOT NULL);
INSERT INTO howdah.settings VALUES (1);

CREATE TABLE howdah.task_type (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._:/-]{1,200}$'),
    max_attempts      smallint CHECK (max_attempts BETWEEN 1 AND 1000),
    retry_policy      jsonb,
    created           timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE howdah.ready (
    id            bigint NOT NULL,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,             -- the token that last settled it: a repeat answers OK
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,  -- attempts begun so far
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,              -- [{attempt, error, started, failed}], the last 100
    payload       bytea NOT NULL,
    PRIMARY KEY (type_id, rank, id)
);
-- For people and cancellation: a job is named by its id. About 5 % of the cycle rate, measured.
CREATE INDEX ready_by_id ON howdah.ready (id);

CREATE TABLE howdah.leased (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    token         bigint NOT NULL,    -- random, new for every lease: the fence
    leased_at     timestamptz NOT NULL,
    deadline      timestamptz,
    broker_id     integer,            -- null: pulled without a stream, lives by its deadline
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    CHECK (attempt BETWEEN 1 AND max_attempts),
    CHECK (broker_id IS NOT NULL OR deadline IS NOT NULL)
);
-- Only leases with a deadline pay for it.
CREATE INDEX leased_by_deadline ON howdah.leased (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE howdah.scheduled (
    id            bigint NOT NULL UNIQUE,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    run_at        timestamptz NOT NULL,
    leased_at     timestamptz,        -- when the last attempt began, if there was one
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    PRIMARY KEY (run_at, id)
);

-- Held by a dependency or a limit. Nothing is put here yet.
CREATE TABLE howdah.waiting (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    limit_key     text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL
);
CREATE INDEX waiting_by_limit_key ON howdah.waiting (limit_key, rank, id) WHERE limit_key IS NOT NULL;

CREATE TABLE howdah.dead (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    leased_at     timestamptz,
    died          timestamptz NOT NULL,
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL
);
CREATE INDEX dead_by_type ON howdah.dead (type_id, id);

-- Finished and immutable; a partition a day, dropped when it is old.
CREATE TABLE howdah.history (
    id            bigint NOT NULL,
    created       timestamptz NOT NULL,
    leased_at     timestamptz,
    finished      timestamptz NOT NULL,
    token         bigint,             -- the token that ended it: a repeated settle answers OK
    type_id       integer NOT NULL,
    outcome       smallint NOT NULL CHECK (outcome BETWEEN 6 AND 9), -- howdah.v1.JobState
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea,
    result        bytea
) PARTITION BY RANGE (finished);
CREATE INDEX history_by_id ON howdah.history (id);
-- Catches what no daily partition is there for, so that an ack never fails for want of one.
CREATE TABLE howdah.history_default PARTITION OF howdah.history DEFAULT;

-- One live job a key; the row goes when the job finishes or dies.
CREATE TABLE howdah.job_key (
    type_id  integer NOT NULL,
    key      text NOT NULL,
    job_id   bigint NOT NULL,
    PRIMARY KEY (type_id, key)
);

-- Enqueue calls that may be repeated, kept for a day.
CREATE TABLE howdah.request (
    key        text PRIMARY KEY,
    body_hash  bytea NOT NULL,
    ids        bigint[] NOT NULL,
    created    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_by_age ON howdah.request (created);

-- One row a running broker, renewed by it; when it expires, others take its leases.
CREATE TABLE howdah.broker (
    id       integer PRIMARY KEY,
    name     text NOT NULL,
    started  timestamptz NOT NULL DEFAULT now(),
    expires  timestamptz NOT NULL
);

-- The hot tables turn over all the time: vacuum by rows changed, not by a part of the table, and
-- without pauses. Payloads are opaque and often compressed already: do not try again.
DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['ready', 'leased', 'scheduled', 'waiting'] LOOP
        EXECUTE format(
            'ALTER TABLE howdah.%I SET (autovacuum_vacuum_scale_factor = 0.02, '
            'autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.2, '
            'autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, '
            'autovacuum_vacuum_cost_delay = 0)', t);
        EXECUTE format('ALTER TABLE howdah.%I ALTER COLUMN payload SET STORAGE EXTERNAL', t);
    END LOOP;
    ALTER TABLE howdah.dead ALTER COLUMN payload SET STORAGE EXTERNAL;
    ALTER TABLE howdah.history ALTER COLUMN payload SET STORAGE EXTERNAL;
    ALTER TABLE howdah.history_default ALTER COLUMN payload SET STORAGE EXTERNAL;
END $$;

-- What people query: every job with its state.
CREATE VIEW howdah.job AS
SELECT j.id, t.name AS task_type, j.state, j.priority, j.attempt, j.max_attempts, j.key,
       j.created, j.run_at, j.leased_at, j.finished, j.deadline, j.headers, j.failures,
       j.payload, j.result, j.type_id
FROM (
    SELECT id, type_id, 'ready'::text AS state, priority, attempt, max_attempts,
           key, created, NULL::timestamptz AS run_at, NULL::timestamptz AS leased_at,
           NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, failures, payload,
           NULL::bytea AS result
    FROM howdah.ready
    UNION ALL
    SELECT id, type_id, 'leased', priority, attempt, max_attempts, key, created, NULL, leased_at,
           NULL, deadline, headers, failures, payload, NULL
    FROM howdah.leased
    UNION ALL
    SELECT id, type_id, 'scheduled', priority, attempt, max_attempts, key, created, run_at,
           leased_at, NULL, NULL, headers, failures, payload, NULL
    FROM howdah.scheduled
    UNION ALL
    SELECT id, type_id, 'waiting', priority, attempt, max_attempts, key, created, NULL, NULL,
           NULL, NULL, headers, failures, payload, NULL
    FROM howdah.waiting
    UNION ALL
    SELECT id, type_id, 'dead', priority, attempt, max_attempts, key, created, NULL, leased_at,
           died, NULL, headers, failures, payload, NULL
    FROM howdah.dead
    UNION ALL
    SELECT id, type_id,
           CASE outcome WHEN 6 THEN 'succeeded' WHEN 7 THEN 'cancelled' WHEN 8 THEN 'expired'
                        ELSE 'discarded' END,
           priority, attempt, max_attempts, key, created, NULL, leased_at, finished, NULL, headers,
           failures, payload, result
    FROM howdah.history
) j
JOIN howdah.task_type t ON t.id = j.type_id;

-- The failures of a job with one more; the last 100 are kept.
CREATE FUNCTION howdah.add_failure(failures jsonb, attempt smallint, error text, started timestamptz)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_array_length(failures) >= 100 THEN failures - 0
                ELSE coalesce(failures, '[]'::jsonb) END
        || jsonb_build_object('attempt', attempt, 'error', error, 'started', started, 'failed', now())
$$;

-- Makes the partition of one day (UTC). Rows of that day that went to the default partition, because
-- nobody made theirs in time, are moved.
CREATE FUNCTION howdah.make_history_partition(day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
    from_time timestamptz := day::timestamp AT TIME ZONE 'UTC';
    to_time timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    -- One broker at a time; the others find it done.
    PERFORM pg_advisory_xact_lock(hashtext('howdah.make_history_partition'));
    IF EXISTS (SELECT FROM pg_class WHERE relname = part
               AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'howdah.history'::regclass)) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE howdah.%I (LIKE howdah.history INCLUDING ALL)', part);
    EXECUTE format('WITH moved AS (DELETE FROM howdah.history_default WHERE finished >= %L AND finished < %L '
                   'RETURNING *) INSERT INTO howdah.%I SELECT * FROM moved', from_time, to_time, part);
    EXECUTE format('ALTER TABLE howdah.history ATTACH PARTITION howdah.%I FOR VALUES FROM (%L) TO (%L)',
                   part, from_time, to_time);
    RETURN true;
END $$;

-- Drops the partitions of days before this one; dropping is all the cleaning that history needs.
CREATE FUNCTION howdah.drop_history_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('howdah.make_history_partition'));
    -- A reader of old history must not stop every ack behind our lock: give up, and try in an hour.
    PERFORM set_config('lock_timeout', '200ms', true);
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'howdah.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') < before LOOP
        EXECUTE format('DROP TABLE howdah.%I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM howdah.history_default WHERE finished < before::timestamp AT TIME ZONE 'UTC';
    RETURN dropped;
END $$;
