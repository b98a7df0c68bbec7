-- The state of a job is the table that holds it (docs/internals/architecture.md). All of these tables start with the same
-- columns, the widest first, so that no padding is stored. Columns that few jobs use are null, which costs one bit each.

CREATE SEQUENCE howdah.job_id AS bigint;

-- Jobs that can run now.
CREATE TABLE howdah.ready (
    id            bigint NOT NULL,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    -- The token of the lease that ended last, XOR a code for how it ended: 0 ack, 1 nack, 2 nack without another attempt, 3
    -- snooze, 4 release, 5 timed out, 6 worker lost. So a repeat of the same outcome is answered OK, and any other outcome is
    -- refused. Codes 5 and 6 do not stand for outcomes of workers. After code 6, any outcome with the token counts until the
    -- next delivery (howdah.regain).
    last_token    bigint,
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,  -- attempts started so far
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,              -- [{attempt, error, started, failed}], the last 100
    payload       bytea NOT NULL,
    PRIMARY KEY (type_id, rank, id)
);
-- Index for look-ups by id, such as by a cancel or by operators. It was measured to cost about 5 % of throughput.
CREATE INDEX ready_by_id ON howdah.ready (id);
-- A job with a limit key holds a slot while it is ready or leased. Used slots are looked up here instead of being kept in a
-- counter, so a crash neither loses a slot nor counts one twice.
CREATE INDEX ready_by_limit_key ON howdah.ready (type_id, (options ->> 'limit_key') COLLATE "C") WHERE options -> 'limit_key' IS NOT NULL;

-- Jobs that run now. One row is one lease.
CREATE TABLE howdah.leased (
    id            bigint PRIMARY KEY,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    token         bigint NOT NULL,    -- fencing token: random, new for every lease
    leased_at     timestamptz NOT NULL,
    deadline      timestamptz,
    broker_id     integer,            -- null: pulled without a stream; the lease lasts until its deadline
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    limited       boolean,            -- true: the lease counts towards a limit of its type
    CHECK (attempt BETWEEN 1 AND max_attempts),
    CHECK (broker_id IS NOT NULL OR deadline IS NOT NULL)
);
-- A partial index: only leases with a deadline have entries.
CREATE INDEX leased_by_deadline ON howdah.leased (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX leased_by_limit_key ON howdah.leased (type_id, (options ->> 'limit_key') COLLATE "C") WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX leased_limited ON howdah.leased (type_id) WHERE limited;

-- Jobs that must not run before run_at: delayed, backing off, or snoozed.
CREATE TABLE howdah.scheduled (
    id            bigint NOT NULL UNIQUE,
    rank          bigint NOT NULL,
    created       timestamptz NOT NULL,
    timeout_ms    bigint,
    last_token    bigint,
    run_at        timestamptz NOT NULL,
    leased_at     timestamptz,        -- when the last attempt started; null: no attempt
    type_id       integer NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    PRIMARY KEY (run_at, id)
);
CREATE INDEX scheduled_by_limit_key ON howdah.scheduled (type_id, (options ->> 'limit_key') COLLATE "C")
    WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX scheduled_coordinated ON howdah.scheduled (run_at, id) WHERE options -> 'coordinated' IS NOT NULL;

-- Jobs that wait for another job, or for a slot of their limit key. The row has every column of a job without a lease, because
-- functions pass jobs to one another as arrays of this row type.
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
    key           text COLLATE "C",
    limit_key     text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL
);
-- Index for the order in which the jobs of a limit key become ready: the largest limit_max first. The index has jobs without
-- limit_max last; howdah.admit_jobs sorts them among the others by the limit of the key.
CREATE INDEX waiting_by_limit_key ON howdah.waiting (type_id, limit_key, (options -> 'limit_max') DESC NULLS LAST, rank, id)
    WHERE limit_key IS NOT NULL;
-- Index of waiting jobs that have started before. With key_strict, they run before the other jobs of their limit key.
CREATE INDEX waiting_started ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL AND attempt > 0;
-- Index to count the backlog of a type, and to change the priority of its jobs.
CREATE INDEX waiting_by_type ON howdah.waiting (type_id);

-- Dead jobs: their attempts are used up, or they cannot be retried. They are kept until an operator decides.
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
    key           text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea NOT NULL,
    -- A generated column, so that every statement that inserts a dead job sets it.
    error_group   text COLLATE "C" NOT NULL GENERATED ALWAYS AS (howdah.failure_group(failures -> -1)) STORED
);
CREATE INDEX dead_by_type ON howdah.dead (type_id, id);
-- Index for lists of the dead jobs with the most attempts. The table may contain many jobs, because dead jobs are kept. Few
-- jobs die, so the index costs little here; on tables that every job passes through, it would cost much. The index does not
-- contain the id. With the id, Postgres would look up jobs by id in this index while its table statistics still describe an
-- empty table, and each look-up would read the whole index. Without the id the index is also small: equal entries are stored
-- once.
CREATE INDEX dead_by_attempt ON howdah.dead (type_id, attempt DESC);
-- Index for searches by key. Jobs without a key have no entries. The hash takes half the space of the key.
CREATE INDEX dead_by_key ON howdah.dead (hashtext(key), type_id, id) WHERE key IS NOT NULL;
-- Index for the discard of old dead jobs (dead_days).
CREATE INDEX dead_by_died ON howdah.dead (type_id, died);
-- Index for error groups. `died` is included, so that counting the groups is an index-only scan.
CREATE INDEX dead_by_error_group ON howdah.dead (type_id, error_group, id) INCLUDE (died);

-- Finished jobs, which never change. Each day has a partition, which is dropped at the end of the retention. The primary keys
-- of history and payload identify deleted rows for logical replication (a publication FOR ALL TABLES). Look-ups use only the
-- first column.
CREATE TABLE howdah.history (
    id            bigint NOT NULL,
    created       timestamptz NOT NULL,
    leased_at     timestamptz,
    finished      timestamptz NOT NULL,
    token         bigint,             -- the token that acked the job: a repeated ack with it is answered OK
    type_id       integer NOT NULL,
    outcome       howdah.job_state NOT NULL CHECK (outcome IN ('succeeded', 'cancelled', 'expired', 'discarded')),
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    priority      smallint NOT NULL,
    key           text COLLATE "C",
    headers       jsonb,
    options       jsonb,
    failures      jsonb,
    payload       bytea,
    result        bytea,
    PRIMARY KEY (id, finished)
) PARTITION BY RANGE (finished);
CREATE INDEX history_by_key ON howdah.history (hashtext(key), type_id, id) WHERE key IS NOT NULL;
-- Default partition of history: takes rows of days without a partition, so that an ack never fails because a partition is
-- missing.
CREATE TABLE howdah.history_default PARTITION OF howdah.history DEFAULT;

-- The range of job ids in each day partition of history and payload, for past days. A look-up by id reads and locks only
-- partitions whose range contains the id, and partitions without a row here.
CREATE TABLE howdah.id_range (
    part      text COLLATE "C" PRIMARY KEY,  -- name of the partition, such as history_20261129
    first_id  bigint,                    -- null: the partition is empty
    last_id   bigint
);

-- Task types differ in retention, so jobs of a day are deleted before its partition is dropped. The row of the day records
-- its last deletion. keep true: only jobs of `types` are left. keep false: all jobs of `types` were deleted.
CREATE TABLE howdah.history_pruned (
    day    date PRIMARY KEY,
    types  integer[] NOT NULL,
    keep   boolean NOT NULL
);

-- Large payloads, stored out of line. A payload is written once here and does not move with its job from table to table. Over
-- the life of a job of 64 KiB, each byte of the payload causes 1.1 bytes of WAL, instead of 2.2 (job enqueued directly into
-- leased) or 3.3 (job enqueued into ready). The job's row has an empty payload and the size in options ->> 'payload_bytes', so
-- statements that move jobs need no special case.
CREATE TABLE howdah.payload (
    id       bigint NOT NULL,            -- the id of the job
    created  timestamptz NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (id, created)
) PARTITION BY RANGE (created);
CREATE TABLE howdah.payload_default PARTITION OF howdah.payload DEFAULT;

-- Index of jobs by their tags. The tags in the job's options (options -> 'tags') are authoritative. A row here is only a hint:
-- since it was written, the job may have got other tags, moved to another type, or ended. So rows are never updated, and
-- partitions of old days are dropped. Jobs without tags have no rows. The hash takes half the space of the tag.
CREATE TABLE howdah.job_tag (
    id       bigint NOT NULL,            -- the id of the job
    created  timestamptz NOT NULL,       -- when this row was created
    hash     integer NOT NULL,           -- hashtext() of the tag
    type_id  integer NOT NULL            -- a type that the job has had with this tag
) PARTITION BY RANGE (created);
CREATE INDEX job_tag_by_hash ON howdah.job_tag (hash, type_id, id);
CREATE TABLE howdah.job_tag_default PARTITION OF howdah.job_tag DEFAULT;
-- The table has no primary key, because two tags of a job may have the same hash. howdah.prepare_partition sets REPLICA
-- IDENTITY FULL on its partitions.
ALTER TABLE howdah.job_tag REPLICA IDENTITY FULL;
ALTER TABLE howdah.job_tag_default REPLICA IDENTITY FULL;

-- Rows of the hot tables change all the time. So VACUUM starts after a number of changed rows instead of a fraction of the
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
    -- Each job leaves a dead row in the table leased, which has few live rows. So VACUUM starts after 2,000 dead rows.
    ALTER TABLE howdah.leased SET (autovacuum_vacuum_threshold = 2000);
    FOREACH t IN ARRAY ARRAY['ready', 'leased', 'scheduled', 'waiting', 'dead', 'history', 'history_default'] LOOP
        EXECUTE format('ALTER TABLE howdah.%I ALTER COLUMN payload SET STORAGE EXTERNAL', t);
    END LOOP;
    ALTER TABLE howdah.payload ALTER COLUMN data SET STORAGE EXTERNAL;
    ALTER TABLE howdah.payload_default ALTER COLUMN data SET STORAGE EXTERNAL;
END $$;
