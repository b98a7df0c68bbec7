-- Relations between jobs: keys, dependencies, limits, expiry, fair keys.

-- The holder of each key of a type, usually a live job. held_until: the key is held until this time instead of until the job
-- ends. version: compared by key_policy replace_if_newer. next_id: the successor, a waiting job that gets the key after the
-- holder.
CREATE TABLE howdah.job_key (
    type_id         integer NOT NULL,
    key             text COLLATE "C" NOT NULL,
    job_id          bigint NOT NULL,
    version         bigint,
    held_until      timestamptz,
    debounce_until  timestamptz,
    next_id         bigint,
    PRIMARY KEY (type_id, key)
);
CREATE INDEX job_key_held ON howdah.job_key (held_until) WHERE held_until IS NOT NULL;

-- The version of the last job of each key that succeeded, compared by key_policy replace_if_newer. Only keys of jobs with a
-- key_version have a row. A row is deleted when history no longer keeps the day on which its job ended.
CREATE TABLE howdah.key_version (
    type_id  integer NOT NULL,
    key      text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    job_id   bigint NOT NULL,
    ended    timestamptz NOT NULL,
    PRIMARY KEY (type_id, key)
);
CREATE INDEX key_version_by_ended ON howdah.key_version (type_id, ended);

-- Dependencies: job_id waits for after_id.
CREATE TABLE howdah.dependency (
    after_id  bigint NOT NULL,
    job_id    bigint NOT NULL,
    PRIMARY KEY (after_id, job_id)
);
CREATE INDEX dependency_by_job ON howdah.dependency (job_id);

-- Expiry times: jobs that must start their first attempt by a time. A row stays until that time, even if the job starts or ends
-- earlier.
CREATE TABLE howdah.expiry (
    expire_at  timestamptz NOT NULL,
    id         bigint NOT NULL,
    PRIMARY KEY (expire_at, id)
);

-- The state of a limit key that has waiting jobs or its own limit. The row with an empty limit_key is for a type with limits. A
-- transaction locks the row before it grants a slot, so that no slot is granted twice.
CREATE TABLE howdah.limit_state (
    type_id       integer NOT NULL,
    limit_key     text COLLATE "C" NOT NULL,
    check_at      timestamptz,          -- null: nothing to grant until a job ends or arrives
    paused_until  timestamptz,
    paused_at     timestamptz,          -- when paused_until was set
    gap_from      timestamptz,          -- when the gap of the key began: start of the last attempt; with key_gap_from_end its end
    tokens        double precision,     -- remaining tokens of the rate limit; null: all
    refilled      timestamptz,
    max_running   integer CHECK (max_running > 0),  -- own limit of the key; null: key_max_running of the type
    PRIMARY KEY (type_id, limit_key)
);
CREATE INDEX limit_state_due ON howdah.limit_state (check_at) WHERE check_at IS NOT NULL;

-- A type with a brake whose last attempt failed. An attempt that succeeds deletes the row. While `since` is set, the type is
-- braked: a claim takes one job as a trial, if next_at has passed and the last trial has ended (functions/brakes.sql).
CREATE TABLE howdah.brake (
    type_id   integer PRIMARY KEY REFERENCES howdah.task_type (id) ON DELETE CASCADE,
    failures  bigint NOT NULL,             -- failed attempts in a row
    since     timestamptz,                 -- start of the brake; null: too few failed attempts
    trials    integer NOT NULL DEFAULT 0,  -- number of trials since then
    tried     timestamptz,                 -- leased_at of the trial that is running or whose outcome is unknown
    next_at   timestamptz                  -- earliest time of the next trial
);

-- A type whose limits were changed, and the progress of the walks that apply the change to its limit keys and leases. Each step
-- is a small transaction that locks the row; any broker can make the next step.
-- Walk 0 goes through limit keys, at once. Walks 1 and 2 go through leases, after brokers have read the new limits. Walk 3 goes
-- through both, after every statement that was running at the change has ended.
CREATE TABLE howdah.limit_change (
    type_id   integer PRIMARY KEY,
    changed   timestamptz NOT NULL,
    due_at    timestamptz NOT NULL,
    walk      smallint NOT NULL DEFAULT 0,
    after_id  bigint,                      -- the last lease that was checked; null: leases are done
    after_key text COLLATE "C" NOT NULL DEFAULT '',
    moving    text COLLATE "C"             -- the limit key of which only some ready jobs are moved to waiting so far
);

-- The last rank that was given to a job of each fair key.
CREATE TABLE howdah.fair_share (
    type_id    integer NOT NULL,
    priority   smallint NOT NULL,
    fair_key   text COLLATE "C" NOT NULL,
    last_rank  bigint NOT NULL,
    given      integer NOT NULL,           -- number of jobs in the batch that ended with last_rank
    PRIMARY KEY (type_id, priority, fair_key)
);

-- Hints about types with fair keys (functions/fair.sql). fair_floor: the lowest rank that was ready. fair_announced: the
-- connection that last announced the type, and when. fair_announced_from: the lowest rank of that announcement. Sequences are
-- used because all transactions see their values at once, and no transaction waits for a row. Types share the sequences; each
-- value contains its type.
DO $$ BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE SEQUENCE howdah.fair_floor_%s', i);
        EXECUTE format('CREATE SEQUENCE howdah.fair_announced_%s', i);
        EXECUTE format('CREATE SEQUENCE howdah.fair_announced_from_%s', i);
    END LOOP;
END $$;
