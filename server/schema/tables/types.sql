-- Composite types: what functions hand to one another.

-- What brokers must be told. kind 1: jobs became ready (type, lowest rank, jobs); 2: jobs are scheduled (µs from now in
-- rank); 3: jobs wait for a limit; 4: a limit is to be checked (µs from now in rank).
CREATE TYPE howdah.woken AS (kind smallint, type_id integer, rank bigint, jobs bigint);

-- A job that is being enqueued. fate: 0 its request was made before, 1 the key's holder is kept, 2 new, 4 the holder
-- was replaced, 5 the key's version is not newer, 6 runs after the holder that runs now, 7 the holder was put off.
CREATE TYPE howdah.new_job AS (
    place integer, id bigint, request_no integer, fate smallint, answer_id bigint, start_us bigint, rank bigint,
    type_id integer, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb, options jsonb,
    payload bytea, data bytea, extra jsonb
);

-- A job that was enqueued by SQL and checked: the columns that enqueue_jobs takes.
CREATE TYPE howdah.checked_job AS (
    type_id integer, rank_base bigint, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb,
    options jsonb, payload bytea, run_at_us bigint, delay_ms bigint, extra jsonb, data bytea
);

-- A job that was taken out of its table, and its state (howdah.v1.JobState).
CREATE TYPE howdah.taken AS (state smallint, job howdah.waiting, leased_at timestamptz, token bigint, broker_id integer, limited boolean);
