-- Running brokers and their sessions, answered enqueue requests, and announcements of ready jobs.

CREATE SEQUENCE howdah.broker_id AS integer;

-- One row for each running broker, which renews it. When the row expires, other brokers release its leases.
CREATE TABLE howdah.broker (
    id       integer PRIMARY KEY,
    name     text COLLATE "C" NOT NULL,
    started  timestamptz NOT NULL DEFAULT now(),
    expires  timestamptz NOT NULL,
    lease_ms bigint,                          -- time from the last renewal to `expires`, in ms
    -- The version of the settings that the broker uses. A caller that needs every broker to use a new version waits until this
    -- column has it in all rows.
    settings_version  bigint
);

-- The sessions of each broker, for lists of workers. With each heartbeat, the broker writes only the sessions that changed
-- (server/engine/src/maintain/workers.rs). The rows are deleted with the broker's row.
CREATE TABLE howdah.worker (
    broker_id   integer NOT NULL REFERENCES howdah.broker (id) ON DELETE CASCADE,
    number      bigint NOT NULL,             -- number of the session within the broker
    updated     timestamptz NOT NULL,
    task_types  text[] COLLATE "C" NOT NULL,  -- task types with a window, or with leased jobs
    job_ids     bigint[] NOT NULL,           -- jobs that the session has held for some seconds, the oldest of each task type
    summary     jsonb NOT NULL,              -- figures of the session as JSON (job::WorkerView)
    PRIMARY KEY (broker_id, number)
) WITH (fillfactor = 70);
-- Numbers in the summary change often, task types rarely. So most updates need not write the index.
CREATE INDEX worker_by_task_type ON howdah.worker USING gin (task_types);

-- Enqueue calls with a request key, kept for a day. A repeated call gets the job ids of the first call.
CREATE TABLE howdah.request (
    key        text COLLATE "C" PRIMARY KEY,
    body_hash  bytea NOT NULL,
    ids        bigint[] NOT NULL,
    created    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_by_age ON howdah.request (created);

-- Sequences that store which connection last announced a task type, and when (functions/announce.sql). They are used because
-- all transactions see their values at once, and no transaction waits for a row.
DO $$ BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE SEQUENCE howdah.announced_%s', i);
    END LOOP;
END $$;
