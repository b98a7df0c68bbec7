-- Enums. Brokers read them as text and write them from text: then a driver need not ask for their types.

-- The state of a job, in the order of howdah.v1.JobState. Up to dead it is the name of the table that the job is in; the
-- others are outcomes in history.
CREATE TYPE howdah.job_state AS ENUM (
    'ready', 'leased', 'scheduled', 'waiting', 'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- What became of an enqueued job.
CREATE TYPE howdah.enqueue_outcome AS ENUM (
    'new',
    'kept',         -- another job has its key, and stays as it is
    'replaced',     -- the job with its key is now as this one says
    'stale',        -- the job with its key has the same version or a newer one
    'next',         -- runs after the job with its key that runs now
    'debounced',    -- replaced, and put off
    'repeated');    -- its request was made before

-- Where a job goes.
CREATE TYPE howdah.destination AS ENUM ('ready', 'scheduled', 'waiting_for_job', 'waiting_for_limit');

-- What happened to a job that has left its table, as far as it matters to others.
CREATE TYPE howdah.ending AS ENUM (
    'moved',        -- goes on: only the slot of its limit key is free
    'fallback',     -- goes on in its fallback: the slot and its key are free
    'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- What is to be done with a lease that is not acked; fallback: what was done, never asked for.
CREATE TYPE howdah.settle_action AS ENUM ('retry', 'dead', 'snooze', 'release', 'lost', 'fallback');

-- What brokers must be told.
CREATE TYPE howdah.wakeup_kind AS ENUM (
    'ready',        -- jobs of a type became ready: its id, their lowest rank, their number
    'scheduled',    -- jobs are scheduled; the first is due in in_us
    'limit',        -- a limit key is to be checked now
    'limit_later'); -- the next limit key is to be checked in in_us
