-- Cluster settings, in one row: limits that decide which jobs are accepted, so every broker and every SQL function must agree
-- on them. Brokers change the row (SettingsService), and read it again when its version has changed. The defaults and bounds
-- equal those in job::ClusterSettings; a test compares them.
CREATE TABLE howdah.settings (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Incremented in the transaction that changes these settings or a task type's settings. Brokers read it in their sweep, and
    -- reload all settings when it has changed. It is not a sequence, because the value of a sequence is visible before the
    -- transaction commits.
    version       bigint NOT NULL DEFAULT 1,
    -- Maximum bytes of a payload, and of a result. At least 1,024, because howdah.enqueue_plain and howdah.complete accept that
    -- much without reading this row. The largest payload with the largest headers fits into the largest gRPC message (1 GiB).
    payload_bytes integer NOT NULL DEFAULT 1048576 CHECK (payload_bytes BETWEEN 1024 AND 1048576000),
    -- Maximum number of headers of a job. Schedules and triggers add two headers.
    headers       integer NOT NULL DEFAULT 64 CHECK (headers BETWEEN 8 AND 10000),
    -- Maximum total bytes of a job's headers: names and values.
    header_bytes  integer NOT NULL DEFAULT 8192 CHECK (header_bytes BETWEEN 1024 AND 16777216),
    -- Maximum bytes of a key, a request key, a limit key, a fair key, or a label. An index entry can hold 2,704.
    key_bytes     integer NOT NULL DEFAULT 200 CHECK (key_bytes BETWEEN 64 AND 2000),
    -- Maximum jobs in an enqueue, outcomes in a settle, and ids in a cancel. Clients send batches of 1,000 without reading this
    -- setting.
    batch         integer NOT NULL DEFAULT 10000 CHECK (batch BETWEEN 1000 AND 100000),
    -- The longest delay of a job, and how far ahead its start and its expiry may be.
    max_delay     interval NOT NULL DEFAULT '3650 days'
                  CHECK (extract(epoch FROM max_delay) BETWEEN 1 AND 36500 * 86400::bigint),
    -- The longest timeout of an attempt, and the longest extension of its deadline.
    max_timeout   interval NOT NULL DEFAULT '30 days'
                  CHECK (extract(epoch FROM max_timeout) BETWEEN 1 AND 3650 * 86400::bigint),
    -- Maximum number of task types. Every broker keeps all types in memory, and its sweep visits each type with ready jobs.
    task_types    integer NOT NULL DEFAULT 10000 CHECK (task_types BETWEEN 100 AND 100000),
    -- Number of days after which dead jobs are discarded; null: they are kept.
    dead_days     integer CHECK (dead_days BETWEEN 1 AND 3650),
    -- The time at which this store was closed to new jobs (howdah store drain), under which store name, and by whom. Null: the
    -- store is open.
    closed        timestamptz,
    closed_name   text COLLATE "C",
    closed_by     text COLLATE "C"
);
INSERT INTO howdah.settings DEFAULT VALUES;

-- Returns whether this store is closed to new jobs. Reading the table would cost each enqueue a look-up. This function costs
-- nothing: Postgres inlines it into plans, and plans again when it changes. close_store and open_store replace it. It is
-- defined here and not with the functions, because a new release must not open a store.
CREATE OR REPLACE FUNCTION howdah.is_closed() RETURNS boolean LANGUAGE sql STABLE RETURN false;
