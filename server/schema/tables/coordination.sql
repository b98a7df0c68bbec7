-- What ties jobs to one another: keys, dependencies, limits, times to begin by, fair shares.

-- One job that has not ended for each key of a type. A key may be held for a time instead of until its job ends, has a
-- version, and may have a job that runs after the one that runs now.
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

-- Jobs that must begin by a time. The row stays until then, whatever becomes of the job.
CREATE TABLE howdah.expiry (
    expire_at  timestamptz NOT NULL,
    id         bigint NOT NULL,
    PRIMARY KEY (expire_at, id)
);

-- The state of a limit key at which jobs wait, or (with an empty key) of a type with limits. The row is
-- locked to grant a slot.
CREATE TABLE howdah.limit_state (
    type_id       integer NOT NULL,
    limit_key     text NOT NULL,
    check_at      timestamptz,          -- null: nothing to grant before a job ends or comes
    paused_until  timestamptz,
    last_start    timestamptz,
    tokens        double precision,     -- of the rate; null: full
    refilled      timestamptz,
    PRIMARY KEY (type_id, limit_key)
);
CREATE INDEX limit_state_due ON howdah.limit_state (check_at) WHERE check_at IS NOT NULL;

-- A type whose limits were changed, and how far the walks through its keys and leases have come that must follow.
-- Each step is a small transaction that holds the row; any broker can make the next one.
-- walk 0: keys, at once. 1 and 2: leases, when brokers have read the limits. 3: both, when all has ended that was
-- under way.
CREATE TABLE howdah.limit_change (
    type_id   integer PRIMARY KEY,
    changed   timestamptz NOT NULL,
    due_at    timestamptz NOT NULL,
    walk      smallint NOT NULL DEFAULT 0,
    after_id  bigint,                      -- lease; null: leases are done
    after_key text NOT NULL DEFAULT '',
    moving    text                         -- a key whose ready jobs are only in part moved to waiting
);

-- The rank that each fair key was given last.
CREATE TABLE howdah.fair_share (
    type_id    integer NOT NULL,
    priority   smallint NOT NULL,
    fair_key   text NOT NULL,
    last_rank  bigint NOT NULL,
    given      integer NOT NULL,           -- jobs in the batch that got it
    PRIMARY KEY (type_id, priority, fair_key)
);
