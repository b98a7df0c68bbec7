-- Statistics of task types by period.

-- Changes of the statistics that are not yet summed up. Each statement that enqueues, ends or loses jobs inserts one row or a
-- few here, in its own transaction. No statement updates a row, so none waits for another, and a rolled-back change is not
-- counted. Maintenance sums the rows up (howdah.sum_statistics) and deletes them. There is no index, so a statement pays only
-- for the insert. Without a key, logical replication identifies rows by all of their columns.
CREATE TABLE howdah.statistics_change (
    at           timestamptz NOT NULL DEFAULT now(),
    -- Sums of the wait times and run times of the attempts that the row counts, in µs.
    wait_us      bigint,
    run_us       bigint,
    type_id      integer NOT NULL,
    enqueued     integer,
    succeeded    integer,
    failed       integer,
    dead         integer,
    cancelled    integer,
    expired      integer,
    -- Histogram buckets of the wait times and run times of the attempts that the row counts (howdah.duration_bucket).
    wait_bucket  smallint,
    run_bucket   smallint
);
ALTER TABLE howdah.statistics_change REPLICA IDENTITY FULL;

-- The statistics of each task type, summed up by period. A period is a minute, an hour or a day (UTC); all three are written
-- together, so each is complete. A type's rows are deleted with the type. So the number of types in statistics is bounded, and
-- a new type under an old name starts at zero.
CREATE TABLE howdah.statistics (
    type_id      integer NOT NULL,
    minutes      smallint NOT NULL CHECK (minutes IN (1, 60, 1440)),
    starts       timestamptz NOT NULL,
    enqueued     bigint NOT NULL,
    succeeded    bigint NOT NULL,
    failed       bigint NOT NULL,
    dead         bigint NOT NULL,
    cancelled    bigint NOT NULL,
    expired      bigint NOT NULL,
    -- numeric: the wait times of a hundred million jobs that waited for days overflow a bigint.
    wait_us      numeric NOT NULL,
    run_us       numeric NOT NULL,
    -- Histograms: the non-empty buckets in ascending order, and the number of attempts in each.
    wait_buckets smallint[] NOT NULL,
    wait_counts  bigint[] NOT NULL,
    run_buckets  smallint[] NOT NULL,
    run_counts   bigint[] NOT NULL,
    PRIMARY KEY (type_id, minutes, starts)
);
CREATE INDEX statistics_by_start ON howdah.statistics (minutes, starts);

-- One row, which a broker locks while it sums up, so that only one broker sums up at a time.
CREATE TABLE howdah.statistics_sum (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    summed   timestamptz NOT NULL DEFAULT '-infinity',  -- everything committed before this time has been summed up
    block    bigint NOT NULL DEFAULT 0,                 -- the last block of statistics_change that was read
    scanned  timestamptz NOT NULL DEFAULT '-infinity'   -- when the table was last read from the first block
);
INSERT INTO howdah.statistics_sum DEFAULT VALUES;

-- The backlog: the largest number of jobs that a type had at once in a period. Brokers take a sample once a minute from the
-- counts that they need for metrics anyway. A type without jobs has no row. Periods and their retention are the same as in
-- statistics.
CREATE TABLE howdah.backlog (
    type_id    integer NOT NULL,
    minutes    smallint NOT NULL CHECK (minutes IN (1, 60, 1440)),
    starts     timestamptz NOT NULL,
    ready      bigint NOT NULL,
    leased     bigint NOT NULL,
    scheduled  bigint NOT NULL,
    waiting    bigint NOT NULL,
    dead       bigint NOT NULL,
    PRIMARY KEY (type_id, minutes, starts)
);
CREATE INDEX backlog_by_start ON howdah.backlog (minutes, starts);

-- One row, which a broker locks while it stores a sample, so that only one broker stores the sample of a minute.
CREATE TABLE howdah.backlog_sample (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    sampled  timestamptz NOT NULL DEFAULT '-infinity'  -- the minute of the last sample
);
INSERT INTO howdah.backlog_sample DEFAULT VALUES;

-- Each row lives for seconds, so VACUUM starts often and does not pause. ANALYZE is off: the table is always read as a whole,
-- so its statistics are not needed. Otherwise ANALYZE would run each time autovacuum looks, and jobs would wait for a processor
-- meanwhile.
ALTER TABLE howdah.statistics_change SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2147483647);
-- Rows of the current periods are updated often. fillfactor leaves room on their pages, so that a new row version stays on the
-- page.
ALTER TABLE howdah.statistics SET (fillfactor = 70);
ALTER TABLE howdah.backlog SET (fillfactor = 70);
