-- Statistics of task types: functions that count, and the summation of the counts. Statements for frequent operations count
-- inline instead of calling these functions.

-- Adds attempts that end now to the statistics.
CREATE OR REPLACE FUNCTION howdah.count_attempts(leases howdah.leased[], has_failed boolean, is_dead boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.statistics_change (type_id, succeeded, failed, dead, wait_us, wait_bucket, run_us, run_bucket)
    SELECT a.type_id, CASE WHEN NOT has_failed THEN count(*) END, CASE WHEN has_failed THEN count(*) END,
           CASE WHEN is_dead THEN count(*) END,
           sum(a.wait_us), howdah.duration_bucket(a.wait_us), sum(a.run_us), howdah.duration_bucket(a.run_us)
    FROM (SELECT l.type_id, howdah.waited_us(l.rank, l.priority, l.options, l.created, l.leased_at) AS wait_us,
                 howdah.ran_us(l.leased_at) AS run_us
          FROM unnest(leases) l) a
    GROUP BY a.type_id, howdah.duration_bucket(a.wait_us), howdah.duration_bucket(a.run_us);
END $$;

-- Adds jobs that enter the given task types now to the statistics.
CREATE OR REPLACE FUNCTION howdah.count_enqueued(type_ids integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.statistics_change (type_id, enqueued) SELECT t.id, count(*) FROM unnest(type_ids) AS t(id) GROUP BY t.id;
END $$;

-- Adds jobs of the given types that are cancelled or expire now to the statistics.
CREATE OR REPLACE FUNCTION howdah.count_ended(type_ids integer[], outcome howdah.job_state) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.statistics_change (type_id, cancelled, expired)
    SELECT t.id, CASE WHEN outcome = 'cancelled' THEN count(*) END, CASE WHEN outcome = 'expired' THEN count(*) END
    FROM unnest(type_ids) AS t(id) WHERE outcome IN ('cancelled', 'expired') GROUP BY t.id;
END $$;

-- Adds at most at_most rows of statistics_change to the statistics, unless the last call that did so is less than `every` ago.
-- Returns the number of rows; null: another broker is summing up, or has just finished.
-- Deleted rows stay on their pages until VACUUM removes them, which it cannot do while a transaction holds an old snapshot. So
-- if the table is large, reading begins at the block where the last call ended. Once a minute it begins at the first block, to
-- find rows that were inserted into pages that VACUUM has freed.
CREATE OR REPLACE FUNCTION howdah.sum_statistics(at_most integer, every interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    s howdah.statistics_sum;
    first_row tid := '(0,0)';
    last_block bigint;
    taken bigint;
BEGIN
    SELECT * INTO s FROM howdah.statistics_sum FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR s.summed > now() - every THEN
        RETURN NULL;
    END IF;
    IF s.scanned > now() - interval '1 minute' AND pg_relation_size('howdah.statistics_change') > 8388608 THEN
        first_row := format('(%s,0)', s.block)::tid;
    ELSE
        s.scanned := now();
    END IF;
    WITH deleted AS (
        DELETE FROM howdah.statistics_change WHERE ctid = ANY (ARRAY(
            SELECT c.ctid FROM howdah.statistics_change c WHERE c.ctid >= first_row LIMIT at_most))
        RETURNING ctid AS row_tid, *
    ),
    by_minute AS MATERIALIZED (
        -- date_bin instead of date_trunc, and the block of the last ctid only, because both run for each row: otherwise they
        -- took a third of the statement's time.
        SELECT d.type_id, date_bin('1 minute', d.at, 'epoch') AS minute, d.wait_bucket, d.run_bucket, count(*) AS changes,
               (max(d.row_tid)::text::point)[0] AS block, sum(d.enqueued) AS enqueued, sum(d.succeeded) AS succeeded,
               sum(d.failed) AS failed, sum(d.dead) AS dead, sum(d.cancelled) AS cancelled, sum(d.expired) AS expired,
               sum(d.wait_us) AS wait_us, sum(d.run_us) AS run_us
        FROM deleted d GROUP BY 1, 2, 3, 4
    ),
    change AS MATERIALIZED (
        SELECT p.minutes, p.starts, m.*, coalesce(m.succeeded, 0) + coalesce(m.failed, 0) AS attempts
        FROM by_minute m JOIN howdah.task_type t ON t.id = m.type_id
        CROSS JOIN LATERAL (VALUES (1::smallint, m.minute), (60::smallint, date_trunc('hour', m.minute, 'UTC')),
                                   (1440::smallint, date_trunc('day', m.minute, 'UTC'))) AS p(minutes, starts)
    ),
    counted AS (
        SELECT c.type_id, c.minutes, c.starts, sum(c.enqueued) AS enqueued, sum(c.succeeded) AS succeeded, sum(c.failed) AS failed,
               sum(c.dead) AS dead, sum(c.cancelled) AS cancelled, sum(c.expired) AS expired, sum(c.wait_us) AS wait_us,
               sum(c.run_us) AS run_us
        FROM change c GROUP BY 1, 2, 3
    ),
    -- Stored rows, to which the new counts are added. They are not locked, because no other statement changes them.
    before AS MATERIALIZED (SELECT o.* FROM counted c JOIN howdah.statistics o USING (type_id, minutes, starts)),
    waits AS (
        SELECT b.type_id, b.minutes, b.starts, array_agg(b.bucket ORDER BY b.bucket) AS buckets, array_agg(b.jobs ORDER BY b.bucket) AS counts
        FROM (SELECT u.type_id, u.minutes, u.starts, u.bucket, sum(u.jobs)::bigint AS jobs
              FROM (SELECT c.type_id, c.minutes, c.starts, c.wait_bucket AS bucket, c.attempts AS jobs FROM change c WHERE c.wait_bucket IS NOT NULL
                    UNION ALL SELECT o.type_id, o.minutes, o.starts, w.bucket, w.jobs
                    FROM before o, unnest(o.wait_buckets, o.wait_counts) AS w(bucket, jobs)) u
              GROUP BY 1, 2, 3, 4) b
        GROUP BY 1, 2, 3
    ),
    runs AS (
        SELECT b.type_id, b.minutes, b.starts, array_agg(b.bucket ORDER BY b.bucket) AS buckets, array_agg(b.jobs ORDER BY b.bucket) AS counts
        FROM (SELECT u.type_id, u.minutes, u.starts, u.bucket, sum(u.jobs)::bigint AS jobs
              FROM (SELECT c.type_id, c.minutes, c.starts, c.run_bucket AS bucket, c.attempts AS jobs FROM change c WHERE c.run_bucket IS NOT NULL
                    UNION ALL SELECT o.type_id, o.minutes, o.starts, r.bucket, r.jobs
                    FROM before o, unnest(o.run_buckets, o.run_counts) AS r(bucket, jobs)) u
              GROUP BY 1, 2, 3, 4) b
        GROUP BY 1, 2, 3
    ),
    stored AS (
        INSERT INTO howdah.statistics AS o (type_id, minutes, starts, enqueued, succeeded, failed, dead, cancelled, expired, wait_us,
                                            run_us, wait_buckets, wait_counts, run_buckets, run_counts)
        SELECT c.type_id, c.minutes, c.starts, coalesce(c.enqueued, 0), coalesce(c.succeeded, 0), coalesce(c.failed, 0),
               coalesce(c.dead, 0), coalesce(c.cancelled, 0), coalesce(c.expired, 0), coalesce(c.wait_us, 0), coalesce(c.run_us, 0),
               coalesce(w.buckets, '{}'), coalesce(w.counts, '{}'), coalesce(r.buckets, '{}'), coalesce(r.counts, '{}')
        FROM counted c LEFT JOIN waits w USING (type_id, minutes, starts) LEFT JOIN runs r USING (type_id, minutes, starts)
        ON CONFLICT (type_id, minutes, starts) DO UPDATE SET enqueued = o.enqueued + excluded.enqueued,
            succeeded = o.succeeded + excluded.succeeded, failed = o.failed + excluded.failed, dead = o.dead + excluded.dead,
            cancelled = o.cancelled + excluded.cancelled, expired = o.expired + excluded.expired,
            wait_us = o.wait_us + excluded.wait_us, run_us = o.run_us + excluded.run_us, wait_buckets = excluded.wait_buckets,
            wait_counts = excluded.wait_counts, run_buckets = excluded.run_buckets, run_counts = excluded.run_counts
    )
    SELECT coalesce(sum(m.changes), 0), coalesce(max(m.block), 0) INTO taken, last_block FROM by_minute m;
    -- If the batch was full, more rows may be left. So `summed` is not advanced, and the next call continues at once.
    UPDATE howdah.statistics_sum u SET summed = CASE WHEN taken < at_most THEN now() ELSE u.summed END,
        block = CASE WHEN taken > 0 THEN last_block ELSE u.block END, scanned = s.scanned;
    RETURN taken;
END $$;
