-- Composite types: what functions hand to one another.

-- What brokers must be told. Functions that return it beside answers for single jobs have a null kind in those.
CREATE TYPE howdah.wakeup AS (kind howdah.wakeup_kind, type_id integer, rank bigint, jobs bigint, in_us bigint);

-- A job that is being enqueued; ordinal: of the call, from 1. Its outcome is null until its key has been looked up.
-- answer_id: the job that is answered for it, if that is another one. data: a payload that is kept out of line. asked: all of
-- the options; options: those that are kept with the job.
CREATE TYPE howdah.new_job AS (
    ordinal integer, id bigint, request_no integer, outcome howdah.enqueue_outcome, answer_id bigint, start_us bigint,
    rank bigint, type_id integer, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb,
    options jsonb, payload bytea, data bytea, asked jsonb
);

-- A job that was enqueued by SQL and checked: the columns that enqueue_jobs takes.
CREATE TYPE howdah.checked_job AS (
    type_id integer, rank_base bigint, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb,
    options jsonb, payload bytea, run_at_us bigint, delay_ms bigint, data bytea
);

-- A job that was taken out of the table of this state.
CREATE TYPE howdah.taken_job AS (
    state howdah.job_state, job howdah.waiting, leased_at timestamptz, broker_id integer, limited boolean);
