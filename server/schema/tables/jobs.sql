-- The state of a job is the table that it is in (docs/internals/architecture.md). All of these tables start with the same
-- columns, the widest first, so that no padding is stored. Columns that few jobs use are null, which costs one bit each.

CREATE SEQUENCE howdah.job_id AS bigint;

-- Jobs that can run now.
CREATE TABLE howdah.ready (
    id            bigint NOT NULL,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    -- The token that settled it last, XOR the kind of outcome: 0 ack, 1 nack, 2 nack without another try, 3 snooze,
    -- 4 release, 5 timed out. So the same outcome again answers OK, and another one does not. Nobody settles as 5.
    last_token    bigint,
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,  -- attempts started so far
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,              -- [{attempt, error, started, failed}], the last 100
    payload       bytea NOT NULL,
    PRIMARY KEY (type_id, rank, id)
);
-- For cancellation and for operators, who name a job by its id. It was measured to cost about 5 % of the throughput.
CREATE INDEX ready_by_id ON howdah.ready (id);
-- A job with a limit key holds a slot while it is ready or leased. Used slots are looked up here instead of being kept in a
-- counter, so no slot is lost or counted twice after a crash.
CREATE INDEX ready_by_limit_key ON howdah.ready (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;

-- Jobs that run now: one row is one lease.
CREATE TABLE howdah.leased (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    token         bigint NOT NULL,    -- random, new for every lease; fences late settles
    leased_at     timestamptz NOT NULL,
    deadline      timestamptz,
    broker_id     integer,            -- null: pulled without a stream; the lease lasts until its deadline
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text,
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    limited       boolean,            -- the type had a limit when the job was claimed
    CHECK (attempt BETWEEN 1 AND max_attempts),
    CHECK (broker_id IS NOT NULL OR deadline IS NOT NULL)
);
-- Only leases with a deadline have entries.
CREATE INDEX leased_by_deadline ON howdah.leased (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX leased_by_limit_key ON howdah.leased (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX leased_limited ON howdah.leased (type_id) WHERE limited;

-- Jobs that must not run before run_at: delayed, backing off, or snoozed.
CREATE TABLE howdah.scheduled (
    id            bigint NOT NULL UNIQUE,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    run_at        timestamptz NOT NULL,
    leased_at     timestamptz,        -- when the last attempt started, if there was one
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

-- Jobs that wait for another job, or for a slot of their limit key. The row has every column of a job without a lease,
-- because functions pass jobs to one another as arrays of it.
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
-- In strict order, jobs of a key that have started before run first.
CREATE INDEX waiting_started ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL AND attempt > 0;
-- For the backlog of a type, and for changes of the priority of its jobs.
CREATE INDEX waiting_by_type ON howdah.waiting (type_id);

-- Jobs whose attempts are used up or that cannot be retried; they are kept until an operator decides.
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
    -- Generated, so that it is set on every path to this table.
    error_group   text NOT NULL GENERATED ALWAYS AS (howdah.error_group(failures -> -1 ->> 'error')) STORED
);
CREATE INDEX dead_by_type ON howdah.dead (type_id, id);
-- For those with the most attempts. Dead jobs may be many, and stay; but few jobs die, so an index costs little here, and would
-- cost much on the tables that every job goes through. Without the id: with it, as long as the statistics are those of an empty
-- table, Postgres would look ids up here, where each look-up reads the whole index. And it is small: equal entries are stored once.
CREATE INDEX dead_by_attempt ON howdah.dead (type_id, attempt DESC);
-- For searches by key. Jobs without a key have no entries. A hash costs half of what the key would.
CREATE INDEX dead_by_key ON howdah.dead (hashtext(key), type_id, id) WHERE key IS NOT NULL;
-- `died` is included, so that a count of the groups reads only the index.
CREATE INDEX dead_by_error_group ON howdah.dead (type_id, error_group, id) INCLUDE (died);

-- Finished jobs, which never change. Each day has a partition, which is dropped when it is old.
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
CREATE INDEX history_by_key ON howdah.history (hashtext(key), type_id, id) WHERE key IS NOT NULL;
-- Takes rows of days without a partition, so that an ack never fails because one is missing.
CREATE TABLE howdah.history_default PARTITION OF howdah.history DEFAULT;

-- Task types may keep their history for different numbers of days. A row says which jobs of a day were deleted already:
-- only the jobs of these types are left (keep), or all jobs but theirs.
CREATE TABLE howdah.history_pruned (
    day    date PRIMARY KEY,
    types  integer[] NOT NULL,
    keep   boolean NOT NULL
);

-- A large payload is stored out of line: it is written once and does not move with its job from table to table. Over the
-- life of a job of 64 KiB, that is 1.1 bytes of WAL for each byte instead of 2.2 (enqueued into leased) or 3.3 (through
-- ready). Such a job has an empty payload, and the size in options ->> 'payload_bytes', so statements that move jobs do not
-- have to know.
CREATE TABLE howdah.payload (
    id       bigint NOT NULL,            -- the id of the job
    created  timestamptz NOT NULL,
    data     bytea NOT NULL
) PARTITION BY RANGE (created);
CREATE INDEX payload_by_id ON howdah.payload (id);
CREATE TABLE howdah.payload_default PARTITION OF howdah.payload DEFAULT;

-- Finds jobs by their tags. The truth is options -> 'tags' of the job, which goes with it from table to table; a row here says
-- only where to look: the job may have got other tags or gone to another type since, or be gone. So nothing updates these rows,
-- and partitions of old days are dropped. Jobs without tags have none. The tag itself is not here: a hash costs half of it.
CREATE TABLE howdah.job_tag (
    id       bigint NOT NULL,            -- the id of the job
    created  timestamptz NOT NULL,       -- when this row was made
    hash     integer NOT NULL,           -- hashtext() of the tag
    type_id  integer NOT NULL            -- a type that the job has had with this tag
) PARTITION BY RANGE (created);
CREATE INDEX job_tag_by_hash ON howdah.job_tag (hash, type_id, id);
CREATE TABLE howdah.job_tag_default PARTITION OF howdah.job_tag DEFAULT;

-- The rows of the hot tables change all the time, so VACUUM comes after a number of changed rows, not after a part of the
-- table, and runs without pauses. Payloads are often compressed already, so Postgres must not try to compress them.
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
    -- Each job leaves a dead row here, in a table that is small.
    ALTER TABLE howdah.leased SET (autovacuum_vacuum_threshold = 2000);
    FOREACH t IN ARRAY ARRAY['ready', 'leased', 'scheduled', 'waiting', 'dead', 'history', 'history_default'] LOOP
        EXECUTE format('ALTER TABLE howdah.%I ALTER COLUMN payload SET STORAGE EXTERNAL', t);
    END LOOP;
    ALTER TABLE howdah.payload ALTER COLUMN data SET STORAGE EXTERNAL;
    ALTER TABLE howdah.payload_default ALTER COLUMN data SET STORAGE EXTERNAL;
END $$;
