-- Bulk operations: changes of many jobs, which brokers carry out in the background (server/engine/src/operate/bulk).

CREATE SEQUENCE howdah.bulk_id;

CREATE TABLE howdah.bulk (
    id            bigint PRIMARY KEY DEFAULT nextval('howdah.bulk_id'),
    -- The change that the operation makes, and the conditions that select its jobs.
    operation     text COLLATE "C" NOT NULL CHECK (operation IN ('retry', 'cancel', 'discard', 'reprioritize', 'undo', 'move', 'set')),
    type_id       integer NOT NULL,
    task_type     text COLLATE "C" NOT NULL,    -- stored, because unused types are deleted
    job_state     text COLLATE "C",             -- only jobs in this state; null: any state that the operation can change
    error_group   text COLLATE "C",             -- only jobs of this error group; null: any
    conditions    jsonb,                        -- further conditions (howdah.meets); null: none
    priority      smallint,                     -- for reprioritize
    undo_bulk_id  bigint CHECK ((undo_bulk_id IS NOT NULL) = (operation = 'undo')),  -- the bulk operation to undo
    to_type       text COLLATE "C" CHECK ((to_type IS NOT NULL) = (operation = 'move')),  -- the name of the target type
    fields        jsonb CHECK ((fields IS NOT NULL) = (operation = 'set')),          -- fields to set (howdah.set_in_jobs)
    jobs_per_s    integer,                      -- at most; null: limited only by other work
    last_job_id   bigint NOT NULL,              -- the last job id that was allotted before the start; newer jobs are not selected
    selected      bigint NOT NULL,              -- jobs counted at the start
    has_more      boolean NOT NULL,             -- true: the count stopped before all selected jobs were counted
    -- The caller and the reason, copied to the audit of each transaction.
    principal     text COLLATE "C" NOT NULL,
    peer          text COLLATE "C" NOT NULL,
    reason        text COLLATE "C" NOT NULL,
    request_key   text COLLATE "C",
    created       timestamptz NOT NULL DEFAULT now(),
    -- Progress of the operation. One transaction changes a batch of jobs and adds to the counts; the next transaction moves the
    -- position (at_state, at_rank, at_id).
    state         text COLLATE "C" NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'completed', 'cancelled')),
    updated       timestamptz NOT NULL DEFAULT now(),
    ended         timestamptz CHECK ((ended IS NULL) = (state IN ('running', 'paused'))),
    owner         integer,                      -- the broker that works on it, while that broker's row has not expired
    next_at       timestamptz NOT NULL DEFAULT now(),  -- earliest start of the next batch; pauses leave capacity for other work
    round         integer NOT NULL DEFAULT 1,   -- another round looks for jobs that moved or were locked in this one
    round_done    bigint NOT NULL DEFAULT 0,    -- jobs changed in this round
    at_state      text COLLATE "C",             -- the position in the round: the state, and the last job
    at_rank       bigint NOT NULL DEFAULT -9223372036854775808,
    at_id         bigint NOT NULL DEFAULT -9223372036854775808,
    done          bigint NOT NULL DEFAULT 0,
    skipped       bigint NOT NULL DEFAULT 0,    -- jobs skipped in the last round
    failed        bigint NOT NULL DEFAULT 0,    -- jobs that failed in the last round
    problem       text COLLATE "C" NOT NULL DEFAULT ''  -- why the last of the failed jobs failed
);
-- Partial index, because only few of the stored bulk operations are running.
CREATE INDEX bulk_running ON howdah.bulk (next_at) WHERE state = 'running';
CREATE UNIQUE INDEX bulk_request ON howdah.bulk (principal, request_key) WHERE request_key IS NOT NULL;

-- The journal of bulk operations: jobs that were cancelled or discarded, with the values that history does not keep.
-- howdah.undo_bulk needs it. The transaction that ends the job writes the row, and the transaction that restores the job sets
-- `undone`. The restored job looks as before, so only this row records the operation. Partitions are dropped together with
-- history partitions, without which the rows are useless. A row takes about 110 bytes, index included.
CREATE TABLE howdah.bulk_change (
    changed      timestamptz NOT NULL DEFAULT now(),  -- history.finished of the job
    bulk_id      bigint NOT NULL,
    job_id       bigint NOT NULL,
    rank         bigint NOT NULL,
    state        howdah.job_state NOT NULL,           -- the table that the job was in
    timeout_ms   bigint,
    last_token   bigint,
    at           timestamptz,                         -- run_at of a scheduled job, died of a dead job
    after_ids    bigint[],                            -- the jobs that it waited for
    -- Columns of the job's row in job_key, if the job held its key; else null.
    key_version  bigint,
    key_debounce_until timestamptz,
    undone       timestamptz,                         -- when the job was restored
    PRIMARY KEY (bulk_id, job_id, changed)            -- for logical replication, like the primary key of history
) PARTITION BY RANGE (changed);
-- Partial index of rows that are not undone, so that a repeated undo does not read jobs that it restored before.
CREATE INDEX bulk_change_by_job ON howdah.bulk_change (bulk_id, job_id) WHERE undone IS NULL;
-- howdah explain looks up here whether an undo has restored a job.
CREATE INDEX bulk_change_undone ON howdah.bulk_change (job_id) WHERE undone IS NOT NULL;
CREATE TABLE howdah.bulk_change_default PARTITION OF howdah.bulk_change DEFAULT;
