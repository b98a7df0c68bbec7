-- Returns the statistics of all types together by period, oldest first, without backlogs and run times. Histograms of wait times
-- are added up bucket by bucket, which takes most of the time: some 20 ms for an hour of minutes with 20 busy types, and 0.8 s
-- with 1,000, on a busy machine. $1 minutes (1, 60 or 1440) $2 since
WITH part AS MATERIALIZED (
    SELECT * FROM howdah.statistics WHERE minutes = $1::smallint AND starts >= $2::timestamptz
),
total AS (
    SELECT starts, sum(enqueued)::bigint AS enqueued, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed,
           sum(dead)::bigint AS dead, sum(cancelled)::bigint AS cancelled, sum(expired)::bigint AS expired,
           sum(wait_us)::double precision AS wait_us, 0::double precision AS run_us
    FROM part GROUP BY starts
),
waits AS (
    SELECT b.starts, array_agg(b.bucket ORDER BY b.bucket) AS buckets, array_agg(b.attempts ORDER BY b.bucket) AS counts
    FROM (SELECT p.starts, u.bucket, sum(u.attempts)::bigint AS attempts
          FROM part p, unnest(p.wait_buckets, p.wait_counts) AS u(bucket, attempts) GROUP BY 1, 2) b
    GROUP BY 1
)
SELECT '' AS name, t.*, coalesce(w.buckets, '{}') AS wait_buckets, coalesce(w.counts, '{}') AS wait_counts,
       '{}'::smallint[] AS run_buckets, '{}'::bigint[] AS run_counts
FROM total t LEFT JOIN waits w USING (starts)
ORDER BY t.starts
