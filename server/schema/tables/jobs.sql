-- A job's state is the table that it is in (docs/internals/architecture.md). All of these tables start with the same columns,
-- widest first, so that no padding is stored. Columns that few jobs use are null, which costs one bit each.

CREATE SEQUENCE howdah.job_id AS bigint;

-- Can run now.
CREATE TABLE howdah.ready (
    id            bigint NOT NULL,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    -- The token that settled it last, XOR the kind of outcome: 0 ack, 1 nack, 2 nack without another try, 3 snooze,
    -- 4 release. So the same outcome again answers OK, and another one does not.
    last_token    bigint,
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
-- For people and for cancellation: they name a job by its id. It costs about 5 % of the cycle rate, measured.
CREATE INDEX ready_by_id ON howdah.ready (id);
-- The slots of a limit key are not counted but looked up: a job with a limit key holds one while it is ready or leased.
-- So none is ever lost or counted twice, whatever crashes.
CREATE INDEX ready_by_limit_key ON howdah.ready (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;

-- Runs now: one row is one lease.
CREATE TABLE howdah.leased (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    token         bigint NOT NULL,    -- random, new for every lease: the fence
    leased_at     timestamptz NOT NULL,
    deadline      timestamptz,
    broker_id     integer,            -- null: pulled without a stream, lives until its deadline
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    limited       boolean,            -- its type had a limit when it was claimed
    CHECK (attempt BETWEEN 1 AND max_attempts),
    CHECK (broker_id IS NOT NULL OR deadline IS NOT NULL)
);
-- Only leases with a deadline pay for it.
CREATE INDEX leased_by_deadline ON howdah.leased (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX leased_by_limit_key ON howdah.leased (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX leased_limited ON howdah.leased (type_id) WHERE limited;

-- Not to run before run_at: delayed, backing off, or snoozed.
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
CREATE INDEX scheduled_by_limit_key ON howdah.scheduled (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX scheduled_coordinated ON howdah.scheduled (run_at, id) WHERE options -> 'coordinated' IS NOT NULL;

-- Waits for another job, or for a slot of its limit key. The row has every column of a job without a lease: functions
-- hand jobs to one another as arrays of it.
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
CREATE INDEX waiting_by_limit_key ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL;
-- In strict order the jobs of a key that have started go first.
CREATE INDEX waiting_started ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL AND attempt > 0;
-- For a type's backlog, and for changing the priority of its jobs.
CREATE INDEX waiting_by_type ON howdah.waiting (type_id);

-- Its attempts are used up or it cannot be retried: kept until somebody decides.
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
    payload       bytea NOT NULL,
    -- Generated, so that it is filled whatever way a job dies.
    error_group   text NOT NULL GENERATED ALWAYS AS (howdah.error_group(failures -> -1 ->> 'error')) STORED
);
CREATE INDEX dead_by_type ON howdah.dead (type_id, id);
-- `died` is included, so that counting groups reads the index only.
CREATE INDEX dead_by_error_group ON howdah.dead (type_id, error_group, id) INCLUDE (died);

-- Finished and immutable: a partition a day, dropped when it is old.
CREATE TABLE howdah.history (
    id            bigint NOT NULL,
    created       timestamptz NOT NULL,
    leased_at     timestamptz,
    finished      timestamptz NOT NULL,
    token         bigint,             -- the token that acked it: the same again answers OK
    type_id       integer NOT NULL,
    outcome       howdah.job_state NOT NULL CHECK (outcome IN ('succeeded', 'cancelled', 'expired', 'discarded')),
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
-- Takes what no daily partition is there for, so that an ack never fails for want of one.
CREATE TABLE howdah.history_default PARTITION OF howdah.history DEFAULT;

-- Task types may differ in how many days their history is kept. A row says what was deleted already of a day: only the
-- jobs of these types are left (keep), or all but theirs.
CREATE TABLE howdah.history_pruned (
    day    date PRIMARY KEY,
    types  integer[] NOT NULL,
    keep   boolean NOT NULL
);

-- A large payload is written once, beside the job, and does not move with it from table to table: over the life of a job
-- of 64 KiB that is 1.1 bytes of WAL a byte instead of 2.2 (enqueued into leased) or 3.3 (through ready). Such a job has
-- an empty payload and its size in options ->> 'payload_bytes'; so statements that move jobs need not know.
CREATE TABLE howdah.payload (
    id       bigint NOT NULL,            -- the job's
    created  timestamptz NOT NULL,
    data     bytea NOT NULL
) PARTITION BY RANGE (created);
CREATE INDEX payload_by_id ON howdah.payload (id);
CREATE TABLE howdah.payload_default PARTITION OF howdah.payload DEFAULT;

-- The hot tables turn over all the time: vacuum by the number of changed rows, not by a part of the table, and without
-- pauses. Payloads are opaque and often compressed already: Postgres is not to try again.
DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['ready', 'leased', 'scheduled', 'waiting'] LOOP
        EXECUTE format(
            'ALTER TABLE howdah.%I SET (autovacuum_vacuum_scale_factor = 0.02, '
            'autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.2, '
            'autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, '
            'autovacuum_vacuum_cost_delay = 0)', t);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['ready', 'leased', 'scheduled', 'waiting', 'dead', 'history', 'history_default'] LOOP
        EXECUTE format('ALTER TABLE howdah.%I ALTER COLUMN payload SET STORAGE EXTERNAL', t);
    END LOOP;
    ALTER TABLE howdah.payload ALTER COLUMN data SET STORAGE EXTERNAL;
    ALTER TABLE howdah.payload_default ALTER COLUMN data SET STORAGE EXTERNAL;
END $$;
