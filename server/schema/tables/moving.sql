-- Task types that move to another store, and what has moved (docs/internals/stores.md). A job is moved by three transactions:
-- one here takes it into leaving, one there stores it and notes that in arrived, one here notes that in moved. Whatever is
-- killed between them is repeated, and finds what was done.

-- In the store that a type leaves: a row for as long as it moves. Jobs of the type are not claimed meanwhile.
CREATE TABLE howdah.type_move (
    type_id     integer PRIMARY KEY,
    to_name     text NOT NULL,
    to_number   integer NOT NULL,
    started     timestamptz NOT NULL DEFAULT now(),
    started_by  text NOT NULL,
    owner       integer                 -- the broker that moves it now; null: nobody does
);

-- Jobs on their way. No claim and no call finds them; their keys stay held.
CREATE TABLE howdah.leaving (
    id       bigint PRIMARY KEY,
    type_id  integer NOT NULL,
    job      jsonb NOT NULL,            -- its row, and what other tables say of it (howdah.leave_jobs)
    payload  bytea NOT NULL             -- whole, wherever it was stored
);
CREATE INDEX leaving_by_type ON howdah.leaving (type_id, id);
ALTER TABLE howdah.leaving ALTER COLUMN payload SET STORAGE EXTERNAL;

-- The new ids of jobs that have moved from here, for as long as history is kept.
CREATE TABLE howdah.moved (
    old_id  bigint PRIMARY KEY,
    new_id  bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX moved_by_age ON howdah.moved (at);

-- Schedules on their way.
CREATE TABLE howdah.leaving_schedule (
    name       text PRIMARY KEY,
    task_type  text NOT NULL,
    schedule   jsonb NOT NULL           -- its row, and the principal that created it
);

-- In the store that a type goes to: a row until the move is over. Until all jobs that could move have come none is claimed, so
-- that the first ones are not overtaken.
CREATE TABLE howdah.type_arrival (
    type_id      integer PRIMARY KEY,
    from_number  integer NOT NULL,
    rests        boolean NOT NULL       -- its jobs are not claimed yet
);

-- The jobs that have come to this store, by their old ids: the second time, a job is not stored.
CREATE TABLE howdah.arrived (
    old_id  bigint PRIMARY KEY,
    new_id  bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX arrived_by_age ON howdah.arrived (at);
