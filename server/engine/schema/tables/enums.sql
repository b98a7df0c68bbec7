-- Enums. Brokers read and write them as text, so that a driver does not have to look up their types.

-- The state of a job, in the order of howdah.v1.JobState. The states up to dead are the names of the tables that hold the job;
-- the others are outcomes in history.
CREATE TYPE howdah.job_state AS ENUM (
    'ready', 'leased', 'scheduled', 'waiting', 'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- The result of enqueuing a job.
CREATE TYPE howdah.enqueue_outcome AS ENUM (
    'new',
    'kept',         -- another job has the key, and stays unchanged
    'replaced',     -- the job with the key was changed to this one
    'stale',        -- the job with the key has the same or a newer version
    'next',         -- the job runs after the one that holds the key and is running
    'debounced',    -- replaced, and delayed again
    'repeated');    -- the request is a repeat

-- The table to which an enqueued or rerouted job goes; for `waiting`, also the reason.
CREATE TYPE howdah.destination AS ENUM ('ready', 'scheduled', 'waiting_for_job', 'waiting_for_limit');

-- How a job left its table. Decides what after_end does about its key, its limit key slot and its dependents.
CREATE TYPE howdah.ending AS ENUM (
    'moved',        -- the job continues: only its limit key slot is free
    'fallback',     -- the job continues in its fallback type: its slot and its key are free
    'dead', 'succeeded', 'cancelled', 'expired', 'discarded');

-- Ways to end a lease without an ack. fallback is only returned: it means that the job went to its fallback type.
CREATE TYPE howdah.settle_action AS ENUM ('retry', 'dead', 'snooze', 'release', 'lost', 'fallback');

-- The kinds of wake-ups for brokers.
CREATE TYPE howdah.wakeup_kind AS ENUM (
    'ready',        -- jobs of a type became ready: type id, lowest rank, number of jobs
    'scheduled',    -- jobs are scheduled; the first is due in in_us
    'limit',        -- a limit key must be checked now
    'limit_later'); -- the next limit key must be checked in in_us
