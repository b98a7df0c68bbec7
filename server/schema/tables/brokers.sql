-- The state of brokers, and the requests that they have answered.

CREATE SEQUENCE howdah.broker_id AS integer;

-- One row for each running broker, which renews it. When it expires, other brokers take over its leases.
CREATE TABLE howdah.broker (
    id       integer PRIMARY KEY,
    name     text NOT NULL,
    started  timestamptz NOT NULL DEFAULT now(),
    expires  timestamptz NOT NULL,
    lease_ms bigint,                          -- from its last renewal to expires
    -- The version of the settings that it goes by: whoever must know that all brokers do asks for it.
    settings_version  bigint
);

-- The sessions of each broker, for lists of workers: the broker writes them with its heartbeat, and only those that have
-- changed (server/src/maintain/workers.rs). Rows go with the broker's row.
CREATE TABLE howdah.worker (
    broker_id   integer NOT NULL REFERENCES howdah.broker (id) ON DELETE CASCADE,
    number      bigint NOT NULL,             -- of the session within the broker
    updated     timestamptz NOT NULL,
    task_types  text[] NOT NULL,             -- with a window, or with jobs that it holds
    job_ids     bigint[] NOT NULL,           -- jobs that it has held for some seconds, the first of each type
    summary     jsonb NOT NULL,              -- job::WorkerView
    PRIMARY KEY (broker_id, number)
) WITH (fillfactor = 70);
-- Figures change often, task types seldom: then updates leave the index alone.
CREATE INDEX worker_by_task_type ON howdah.worker USING gin (task_types);

-- Enqueue calls with a request key, kept for a day: a repeated call is answered with the ids of the first.
CREATE TABLE howdah.request (
    key        text PRIMARY KEY,
    body_hash  bytea NOT NULL,
    ids        bigint[] NOT NULL,
    created    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_by_age ON howdah.request (created);

-- Which connection announced a task type last, and when (functions/announce.sql). These are sequences, because all
-- transactions see their values at once, and no transaction waits for a row.
DO $$ BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE SEQUENCE howdah.announced_%s', i);
    END LOOP;
END $$;
