-- Enums. Brokers read and write them as text, so that a driver does not have to look up their types.

-- The state of a job, in the order of howdah.v1.JobState. Up to dead it is the name of the table that the job is in; the
-- others are outcomes in history.
CREATE TYPE howdah.job_state AS ENUM (
    'ready', 'leased', 'scheduled', 'waiting', 'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- The result of enqueuing a job.
CREATE TYPE howdah.enqueue_outcome AS ENUM (
    'new',
    'kept',         -- another job has its key, and stays unchanged
    'replaced',     -- the job with its key was changed to this one
    'stale',        -- the job with its key has the same or a newer version
    'next',         -- it runs after the job with its key that is running now
    'debounced',    -- replaced, and delayed again
    'repeated');    -- its request is a repeat

-- Where an enqueued or rerouted job goes.
CREATE TYPE howdah.destination AS ENUM ('ready', 'scheduled', 'waiting_for_job', 'waiting_for_limit');

-- What happened to a job that has left its table, as far as it matters to other jobs.
CREATE TYPE howdah.ending AS ENUM (
    'moved',        -- it goes on: only the slot of its limit key is free
    'fallback',     -- it goes on in its fallback: the slot and its key are free
    'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- What to do with a lease that is not acked. fallback is only an answer: the job went to its fallback.
CREATE TYPE howdah.settle_action AS ENUM ('retry', 'dead', 'snooze', 'release', 'lost', 'fallback');

-- The kinds of news that brokers must be sent.
CREATE TYPE howdah.wakeup_kind AS ENUM (
    'ready',        -- jobs of a type became ready: the id of the type, their lowest rank, their number
    'scheduled',    -- jobs are scheduled; the first is due in in_us
    'limit',        -- a limit key must be checked now
    'limit_later'); -- the next limit key must be checked in in_us
