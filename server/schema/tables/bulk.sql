-- Bulk operations: a change of many jobs, which brokers work off in the background (server/src/operate/bulk).

CREATE SEQUENCE howdah.bulk_id;

CREATE TABLE howdah.bulk (
    id            bigint PRIMARY KEY DEFAULT nextval('howdah.bulk_id'),
    -- The change, and the jobs.
    operation     text NOT NULL CHECK (operation IN ('retry', 'cancel', 'discard', 'reprioritize', 'undo', 'move', 'set')),
    type_id       integer NOT NULL,
    task_type     text NOT NULL,                -- types that are unused are deleted
    job_state     text,                         -- only jobs in this state; null: in each that the operation changes
    error_group   text,                         -- only jobs of this group; null: any
    priority      smallint,                     -- for reprioritize
    undo_bulk_id  bigint CHECK ((undo_bulk_id IS NOT NULL) = (operation = 'undo')),  -- the bulk operation that it undoes
    to_type       text CHECK ((to_type IS NOT NULL) = (operation = 'move')),         -- the name of the type that the jobs go to
    fields        jsonb CHECK ((fields IS NOT NULL) = (operation = 'set')),          -- what is set (howdah.set_in_jobs)
    jobs_per_s    integer,                      -- at most; null: as many as other work leaves room for
    last_job_id   bigint NOT NULL,              -- the last job that was enqueued before
    selected      bigint NOT NULL,              -- the jobs that were counted at the start
    has_more      boolean NOT NULL,             -- there were more
    -- Who started it, and why: the audit of each transaction says so.
    principal     text NOT NULL,
    peer          text NOT NULL,
    reason        text NOT NULL,
    request_key   text,
    created       timestamptz NOT NULL DEFAULT now(),
    -- How far it is. One transaction changes a batch of jobs and adds to the counts; the next one moves the position.
    state         text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'completed', 'cancelled')),
    updated       timestamptz NOT NULL DEFAULT now(),
    ended         timestamptz CHECK ((ended IS NULL) = (state IN ('running', 'paused'))),
    owner         integer,                      -- the broker that works on it, for as long as that broker's row lives
    next_at       timestamptz NOT NULL DEFAULT now(),  -- not before, so that other work goes on
    round         integer NOT NULL DEFAULT 1,   -- jobs that moved or were locked are looked for again
    round_done    bigint NOT NULL DEFAULT 0,    -- jobs that were changed in this round
    at_state      text,                         -- the position in the round: the state, and the last job
    at_rank       bigint NOT NULL DEFAULT -9223372036854775808,
    at_id         bigint NOT NULL DEFAULT -9223372036854775808,
    done          bigint NOT NULL DEFAULT 0,
    skipped       bigint NOT NULL DEFAULT 0,    -- of the last round
    failed        bigint NOT NULL DEFAULT 0,    -- of the last round
    problem       text NOT NULL DEFAULT ''      -- why the last job of these failed
);
-- The few that are worked on.
CREATE INDEX bulk_running ON howdah.bulk (next_at) WHERE state = 'running';
CREATE UNIQUE INDEX bulk_request ON howdah.bulk (principal, request_key) WHERE request_key IS NOT NULL;

-- The journal: jobs that a bulk operation has cancelled or discarded, and what history does not have of them. So it can be
-- undone (howdah.undo_bulk). A row is written in the transaction that ends the job, and marked in the one that puts it back: the job
-- itself is then as it was, and only this row tells what had become of it. Partitions are dropped with those of history, without which
-- a row is worth little. About 110 bytes a job, index included.
CREATE TABLE howdah.bulk_change (
    changed      timestamptz NOT NULL DEFAULT now(),  -- history.finished of the job
    bulk_id      bigint NOT NULL,
    job_id       bigint NOT NULL,
    rank         bigint NOT NULL,
    state        howdah.job_state NOT NULL,           -- the table that it was in
    timeout_ms   bigint,
    last_token   bigint,
    at           timestamptz,                         -- run_at of scheduled jobs, died of dead ones
    after_ids    bigint[],                            -- the jobs that it waited for
    -- Of its key, if it was the holder.
    key_version  bigint,
    key_debounce_until timestamptz,
    undone       timestamptz                          -- when the job was put back
) PARTITION BY RANGE (changed);
-- What is left to undo: an undo that looks again does not read what it has put back.
CREATE INDEX bulk_change_by_job ON howdah.bulk_change (bulk_id, job_id) WHERE undone IS NULL;
-- For howdah explain.
CREATE INDEX bulk_change_undone ON howdah.bulk_change (job_id) WHERE undone IS NOT NULL;
CREATE TABLE howdah.bulk_change_default PARTITION OF howdah.bulk_change DEFAULT;
