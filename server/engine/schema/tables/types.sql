-- Composite types that functions pass to one another.

-- A wake-up for brokers. Functions that also return results of single jobs return these in rows with a null kind.
CREATE TYPE howdah.wakeup AS (kind howdah.wakeup_kind, type_id integer, rank bigint, jobs bigint, in_us bigint);

-- A job that is being enqueued. ordinal: its position in the call, from 1. outcome: null until its key has been looked up.
-- answer_id: the id to answer with, if it is another job's id. data: a payload to store out of line. requested: all options of
-- the request; options: the options stored with the job.
CREATE TYPE howdah.new_job AS (
    ordinal integer, id bigint, request_no integer, outcome howdah.enqueue_outcome, answer_id bigint, start_us bigint,
    rank bigint, type_id integer, priority smallint, max_attempts smallint, timeout_ms bigint, key text COLLATE "C", headers jsonb,
    options jsonb, payload bytea, data bytea, requested jsonb
);

-- A job that an SQL function has checked, with the columns that enqueue_jobs takes.
CREATE TYPE howdah.checked_job AS (
    type_id integer, rank_base bigint, priority smallint, max_attempts smallint, timeout_ms bigint, key text COLLATE "C", headers jsonb,
    options jsonb, payload bytea, run_at_us bigint, delay_ms bigint, data bytea
);

-- A job that was deleted from its table, and the state that the table stands for.
CREATE TYPE howdah.taken_job AS (
    state howdah.job_state, job howdah.waiting, leased_at timestamptz, broker_id integer, limited boolean);

-- A job that a bulk operation has locked and may change. run_at: only for scheduled jobs.
CREATE TYPE howdah.locked_job AS (
    id bigint, attempt smallint, max_attempts smallint, timeout_ms bigint, run_at timestamptz, key text COLLATE "C", options jsonb);
