-- Task types and their settings; null means the broker's default. Brokers cache the table; jobs refer to a type by id.
CREATE TABLE howdah.task_type (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._:/-]{1,200}$'),
    max_attempts      smallint CHECK (max_attempts BETWEEN 1 AND 1000),
    retry_policy      jsonb,
    created           timestamptz NOT NULL DEFAULT now(),
    -- Which succeeded jobs go to history; null: all of them. Jobs with another outcome always go there.
    history           text COLLATE "C" CHECK (history IN ('full', 'failures', 'none', 'without_empty')),

    -- Limits of the whole type, checked at each claim.
    max_running       integer CHECK (max_running > 0),
    rate_per_s        double precision CHECK (rate_per_s > 0),
    rate_burst        integer CHECK (rate_burst > 0),
    -- Limits of each limit key of the type, checked before a job becomes ready.
    key_max_running   integer CHECK (key_max_running > 0),
    key_strict        boolean,            -- true: a job that waits for its next attempt keeps its slot
    key_min_gap_ms    bigint CHECK (key_min_gap_ms > 0),
    key_gap_from_end  boolean,            -- true: key_min_gap_ms counts from the end of an attempt, and one job runs at a time
    key_rate_per_s    double precision CHECK (key_rate_per_s > 0),
    key_rate_burst    integer CHECK (key_rate_burst > 0),
    -- The brake (table brake): the failed attempts in a row that start it, its first and its longest pause.
    brake_failures    integer CHECK (brake_failures > 0),
    brake_initial_ms  bigint CHECK (brake_initial_ms > 0),
    brake_max_ms      bigint CHECK (brake_max_ms >= brake_initial_ms),

    -- The type that gets the jobs of this type whose attempts are used up; null: they become dead jobs.
    fallback          integer REFERENCES howdah.task_type (id) CHECK (fallback <> id),

    priority_step_us  bigint CHECK (priority_step_us BETWEEN 1000 AND howdah.default_step()),
    timeout_ms        bigint CHECK (timeout_ms > 0),
    paused            boolean,
    max_payload_bytes integer CHECK (max_payload_bytes > 0),
    max_backlog       bigint CHECK (max_backlog > 0),
    history_days      smallint CHECK (history_days > 0),
    dead_days         smallint CHECK (dead_days > 0),
    -- Time at which priority_step_us was changed, as long as ranks of some jobs may have the old step; null: all ranks have the
    -- current step.
    step_changed      timestamptz,
    -- The time since which the type has had no jobs, settings or schedules; null: the type was in use at the last check. A
    -- caller that uses an unused type sets unused_since to now. A type that is unused for longer than the retention of history
    -- is deleted.
    unused_since      timestamptz
);
-- The principal that created each type, by being the first to use its name. Each principal may create only a share of all
-- types.
CREATE TABLE howdah.task_type_creator (
    type_id   integer PRIMARY KEY REFERENCES howdah.task_type (id) ON DELETE CASCADE,
    principal text COLLATE "C" NOT NULL
);
CREATE INDEX ON howdah.task_type_creator (principal);

-- While there are few types, a sequential scan is the fastest look-up. ANALYZE tells Postgres that there are few: it assumes
-- ten pages for a table that was never analyzed.
ANALYZE howdah.task_type;

-- The last call for jobs of a type without a stream (PullJobs) at any broker. Each broker writes it with its heartbeat, unless
-- the stored time is nearly as recent (server/engine/sql/maintain/report_pulls.sql).
CREATE TABLE howdah.pull (
    type_id  integer PRIMARY KEY REFERENCES howdah.task_type (id) ON DELETE CASCADE,
    last     timestamptz NOT NULL
) WITH (fillfactor = 70);
