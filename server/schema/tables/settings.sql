-- Settings of the cluster, in one row: limits that decide which jobs are accepted, so every broker and every SQL function
-- must agree on them. Brokers change the row (SettingsService) and read it again when its version has changed. The defaults
-- and bounds are those of job::ClusterSettings; a test compares them.
CREATE TABLE howdah.settings (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Raised in the transaction that changes these settings or those of a task type. Brokers read it in their sweep, and read
    -- all settings again when it has changed. It is not a sequence, whose value is visible before the transaction commits.
    version       bigint NOT NULL DEFAULT 1,
    -- Bytes of a payload, and of a result. At least 1,024, because howdah.enqueue_plain and howdah.complete accept so many
    -- without reading this row. The largest payload with the largest headers fits into the largest gRPC message (1 GiB).
    payload_bytes integer NOT NULL DEFAULT 1048576 CHECK (payload_bytes BETWEEN 1024 AND 1048576000),
    -- Headers of a job. Schedules and triggers add two.
    headers       integer NOT NULL DEFAULT 64 CHECK (headers BETWEEN 8 AND 10000),
    -- Bytes of a job's headers together: names and values.
    header_bytes  integer NOT NULL DEFAULT 8192 CHECK (header_bytes BETWEEN 1024 AND 16777216),
    -- Bytes of a key, a request key, a limit key, a fair key, a label. An index entry can have 2,704.
    key_bytes     integer NOT NULL DEFAULT 200 CHECK (key_bytes BETWEEN 64 AND 2000),
    -- Jobs in an enqueue, outcomes in a settle, ids in a cancel. Clients send 1,000 at once without reading this setting.
    batch         integer NOT NULL DEFAULT 10000 CHECK (batch BETWEEN 1000 AND 100000),
    -- The longest delay of a job, and how far ahead its start and its expiry may be.
    max_delay     interval NOT NULL DEFAULT '3650 days'
                  CHECK (extract(epoch FROM max_delay) BETWEEN 1 AND 36500 * 86400::bigint),
    -- The longest timeout of an attempt, and the longest extension of it.
    max_timeout   interval NOT NULL DEFAULT '30 days'
                  CHECK (extract(epoch FROM max_timeout) BETWEEN 1 AND 3650 * 86400::bigint),
    -- Task types. Each has a place in the memory of every broker, and the sweep looks at each that has ready jobs.
    task_types    integer NOT NULL DEFAULT 10000 CHECK (task_types BETWEEN 100 AND 100000),
    -- Since when this store takes no new jobs (howdah store drain), as what store it was closed, and by whom; null: it is open.
    closed        timestamptz,
    closed_name   text,
    closed_by     text
);
INSERT INTO howdah.settings DEFAULT VALUES;

-- Whether this store is closed to new jobs. Asking the table would cost each enqueue a look-up; this costs nothing, because
-- Postgres puts the answer into its plans, and makes them again when the function changes. close_store and open_store replace
-- it, so it is here and not with the functions: a new release must not open a store.
CREATE OR REPLACE FUNCTION howdah.is_closed() RETURNS boolean LANGUAGE sql STABLE RETURN false;
