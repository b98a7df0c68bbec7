-- Task types that move to another store, and their moved jobs (docs/internals/stores.md). Three transactions move a job: the
-- source store takes it into leaving, the target store stores it and records that in arrived, and the source store records that
-- in moved. Each transaction is idempotent, so it can be repeated after a crash.

-- In the source store: one row per type that is moving. Jobs of the type are not claimed meanwhile.
CREATE TABLE howdah.type_move (
    type_id     integer PRIMARY KEY,
    to_name     text COLLATE "C" NOT NULL,
    to_number   integer NOT NULL,
    started     timestamptz NOT NULL DEFAULT now(),
    started_by  text COLLATE "C" NOT NULL,
    owner       integer                 -- the broker that carries out the move; null: no broker does
);

-- Jobs in transit to another store. No claim and no call finds them; their keys stay held.
CREATE TABLE howdah.leaving (
    id       bigint PRIMARY KEY,
    type_id  integer NOT NULL,
    job      jsonb NOT NULL,            -- the job's row, and related rows of other tables (howdah.leave_jobs)
    payload  bytea NOT NULL             -- the whole payload, wherever it was stored
);
CREATE INDEX leaving_by_type ON howdah.leaving (type_id, id);
ALTER TABLE howdah.leaving ALTER COLUMN payload SET STORAGE EXTERNAL;

-- The new ids of jobs that moved from this store, kept as long as history.
CREATE TABLE howdah.moved (
    old_id  bigint PRIMARY KEY,
    new_id  bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX moved_by_age ON howdah.moved (at);

-- Schedules in transit to another store.
CREATE TABLE howdah.leaving_schedule (
    name       text COLLATE "C" PRIMARY KEY,
    task_type  text COLLATE "C" NOT NULL,
    schedule   jsonb NOT NULL           -- the schedule's row, and the principal that created the schedule
);

-- In the target store: one row per arriving type until the move is over. No job of the type is claimed until all jobs that
-- could move have arrived, so that newer jobs do not overtake older ones.
CREATE TABLE howdah.type_arrival (
    type_id      integer PRIMARY KEY,
    from_number  integer NOT NULL,
    claims_held  boolean NOT NULL       -- true: brokers do not claim jobs of the type yet
);

-- The jobs that arrived in this store, by their old ids. If a transfer is repeated, a job that is listed here is not stored
-- again.
CREATE TABLE howdah.arrived (
    old_id  bigint PRIMARY KEY,
    new_id  bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX arrived_by_age ON howdah.arrived (at);
