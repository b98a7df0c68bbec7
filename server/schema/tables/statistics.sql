-- Statistics of task types by period.

-- What has happened since the last sum: each statement that enqueues, ends or loses jobs inserts a row or a few here, in its own
-- transaction. Nobody updates a row, so nobody waits, and what is rolled back is not counted. Maintenance sums the rows up
-- (howdah.sum_statistics) and deletes them. There is no index: an insert is all that a statement pays.
CREATE TABLE howdah.statistics_change (
    at           timestamptz NOT NULL DEFAULT now(),
    -- Sums over the attempts of this row, µs.
    wait_us      bigint,
    run_us       bigint,
    type_id      integer NOT NULL,
    enqueued     integer,
    succeeded    integer,
    failed       integer,
    dead         integer,
    cancelled    integer,
    expired      integer,
    -- The buckets of the attempts of this row (howdah.duration_bucket).
    wait_bucket  smallint,
    run_bucket   smallint
);

-- The sums. A period is a minute, an hour or a day (UTC); all three are written together, so each is complete by itself.
-- A type's rows are deleted with the type: the names in statistics are then bounded as types are, and a type that gets an old
-- name begins anew.
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
    -- numeric: waits of days, of a hundred million jobs, are more than a bigint has.
    wait_us      numeric NOT NULL,
    run_us       numeric NOT NULL,
    -- The buckets that are not empty, in their order, and how many attempts are in each.
    wait_buckets smallint[] NOT NULL,
    wait_counts  bigint[] NOT NULL,
    run_buckets  smallint[] NOT NULL,
    run_counts   bigint[] NOT NULL,
    PRIMARY KEY (type_id, minutes, starts)
);
CREATE INDEX statistics_by_start ON howdah.statistics (minutes, starts);

-- One row. Whoever sums up locks it, so that only one does.
CREATE TABLE howdah.statistics_sum (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    summed   timestamptz NOT NULL DEFAULT '-infinity',  -- until then, what was committed has been summed up
    block    bigint NOT NULL DEFAULT 0,                 -- the last block of statistics_change that was read
    scanned  timestamptz NOT NULL DEFAULT '-infinity'   -- when it was last read from the first block
);
INSERT INTO howdah.statistics_sum DEFAULT VALUES;

-- How many jobs a type had at once, at most, in a period: the largest of the samples that brokers take once a minute of what they
-- count for the metrics anyway. A type without jobs has no row. Periods and their ends are those of statistics.
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

-- One row. Whoever takes a sample locks it, so that only one broker does.
CREATE TABLE howdah.backlog_sample (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    sampled  timestamptz NOT NULL DEFAULT '-infinity'  -- the minute of the last sample
);
INSERT INTO howdah.backlog_sample DEFAULT VALUES;

-- Each row lives for seconds, so VACUUM comes often and does not pause. It is always read as a whole, so its contents need not be
-- known: ANALYZE would come each time that autovacuum looks, and jobs would wait for a processor meanwhile.
ALTER TABLE howdah.statistics_change SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2147483647);
-- Rows of the current periods are updated again and again: room for that on their pages.
ALTER TABLE howdah.statistics SET (fillfactor = 70);
ALTER TABLE howdah.backlog SET (fillfactor = 70);
