-- The state of brokers, and the requests that they have answered.

CREATE SEQUENCE howdah.broker_id AS integer;

-- One row for each running broker, which renews it. When it expires, other brokers take over its leases.
CREATE TABLE howdah.broker (
    id       integer PRIMARY KEY,
    name     text NOT NULL,
    started  timestamptz NOT NULL DEFAULT now(),
    expires  timestamptz NOT NULL
);

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
