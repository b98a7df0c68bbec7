-- Returns statistics and backlog of a type by period, oldest first: periods in which anything happened, or in which the type
-- had jobs when brokers counted. $1 type_id $2 minutes (1, 60 or 1440) $3 since $4 until (null: no bound)
WITH bound AS (
    SELECT coalesce(date_bin(make_interval(mins => $2::smallint), $3::timestamptz, '1970-01-01 00:00:00+00'), '-infinity') AS since,
           coalesce($4::timestamptz, 'infinity') AS until
)
SELECT t.name, coalesce(s.starts, b.starts) AS starts,
       coalesce(s.enqueued, 0) AS enqueued, coalesce(s.succeeded, 0) AS succeeded, coalesce(s.failed, 0) AS failed,
       coalesce(s.dead, 0) AS dead, coalesce(s.cancelled, 0) AS cancelled, coalesce(s.expired, 0) AS expired,
       coalesce(s.wait_us, 0)::double precision AS wait_us, coalesce(s.run_us, 0)::double precision AS run_us,
       coalesce(s.wait_buckets, '{}') AS wait_buckets, coalesce(s.wait_counts, '{}') AS wait_counts,
       coalesce(s.run_buckets, '{}') AS run_buckets, coalesce(s.run_counts, '{}') AS run_counts,
       CASE WHEN b.starts IS NOT NULL THEN ARRAY[b.ready, b.leased, b.scheduled, b.waiting, b.dead] END AS backlog
FROM (SELECT * FROM howdah.statistics
      WHERE type_id = $1::integer AND minutes = $2 AND starts >= (SELECT since FROM bound) AND starts < (SELECT until FROM bound)) s
FULL JOIN (SELECT * FROM howdah.backlog
           WHERE type_id = $1 AND minutes = $2 AND starts >= (SELECT since FROM bound) AND starts < (SELECT until FROM bound)) b
    ON b.starts = s.starts
JOIN howdah.task_type t ON t.id = coalesce(s.type_id, b.type_id)
ORDER BY 2
