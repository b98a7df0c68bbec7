-- Relations between jobs: keys, dependencies, limits, expiry, fair shares.

-- The live job of each key of a type. A key may be held for a time instead of until its job ends. It may have a version,
-- and a next job that runs after the one that is running now.
CREATE TABLE howdah.job_key (
    type_id         integer NOT NULL,
    key             text NOT NULL,
    job_id          bigint NOT NULL,
    version         bigint,
    held_until      timestamptz,
    debounce_until  timestamptz,
    next_id         bigint,
    PRIMARY KEY (type_id, key)
);
CREATE INDEX job_key_held ON howdah.job_key (held_until) WHERE held_until IS NOT NULL;

-- job_id waits for after_id.
CREATE TABLE howdah.dependency (
    after_id  bigint NOT NULL,
    job_id    bigint NOT NULL,
    PRIMARY KEY (after_id, job_id)
);
CREATE INDEX dependency_by_job ON howdah.dependency (job_id);

-- Jobs that must start by a time. The row stays until that time, whatever happens to the job.
CREATE TABLE howdah.expiry (
    expire_at  timestamptz NOT NULL,
    id         bigint NOT NULL,
    PRIMARY KEY (expire_at, id)
);

-- The state of a limit key at which jobs wait, or (with an empty key) of a type with limits. A transaction locks the row to
-- grant a slot.
CREATE TABLE howdah.limit_state (
    type_id       integer NOT NULL,
    limit_key     text NOT NULL,
    check_at      timestamptz,          -- null: nothing to grant until a job ends or arrives
    paused_until  timestamptz,
    last_start    timestamptz,
    tokens        double precision,     -- tokens of the rate that are left; null: all
    refilled      timestamptz,
    PRIMARY KEY (type_id, limit_key)
);
CREATE INDEX limit_state_due ON howdah.limit_state (check_at) WHERE check_at IS NOT NULL;

-- A type whose limits were changed, and the progress of the walks through its keys and leases that apply the change.
-- Each step is a small transaction that locks the row; any broker can make the next step.
-- walk 0: keys, at once. 1 and 2: leases, after brokers have read the limits. 3: both, after all statements that were
-- running at the change have ended.
CREATE TABLE howdah.limit_change (
    type_id   integer PRIMARY KEY,
    changed   timestamptz NOT NULL,
    due_at    timestamptz NOT NULL,
    walk      smallint NOT NULL DEFAULT 0,
    after_id  bigint,                      -- the last lease that was checked; null: leases are done
    after_key text NOT NULL DEFAULT '',
    moving    text                         -- a key of which only a part of the ready jobs has been moved to waiting
);

-- The last rank that each fair key was given.
CREATE TABLE howdah.fair_share (
    type_id    integer NOT NULL,
    priority   smallint NOT NULL,
    fair_key   text NOT NULL,
    last_rank  bigint NOT NULL,
    given      integer NOT NULL,           -- number of jobs in the batch that got it
    PRIMARY KEY (type_id, priority, fair_key)
);

-- Hints about types with fair keys (functions/fair.sql): the lowest rank that was ready (floor), which connection announced a
-- type last, and when (told), and from which rank on (told_from). Sequences, because all transactions see their values at once,
-- and no transaction waits for a row. Types share them: a value says whose it is.
DO $$ BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE SEQUENCE howdah.fair_floor_%s', i);
        EXECUTE format('CREATE SEQUENCE howdah.fair_told_%s', i);
        EXECUTE format('CREATE SEQUENCE howdah.fair_told_from_%s', i);
    END LOOP;
END $$;
