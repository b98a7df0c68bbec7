-- Returns totals of the types with the most attempts. Histogram buckets are added up only for these types, because that costs
-- more than all other totals.
-- $1 minutes (1, 60 or 1440) $2 since $3 until (null: no bound) $4 at most
WITH total AS MATERIALIZED (
    SELECT s.type_id, t.name, min(s.starts) AS starts, sum(s.enqueued)::bigint AS enqueued, sum(s.succeeded)::bigint AS succeeded,
           sum(s.failed)::bigint AS failed, sum(s.dead)::bigint AS dead, sum(s.cancelled)::bigint AS cancelled,
           sum(s.expired)::bigint AS expired, sum(s.wait_us)::double precision AS wait_us, sum(s.run_us)::double precision AS run_us
    FROM howdah.statistics s JOIN howdah.task_type t ON t.id = s.type_id
    WHERE s.minutes = $1::smallint
      AND s.starts >= coalesce(date_bin(make_interval(mins => $1), $2::timestamptz, '1970-01-01 00:00:00+00'), '-infinity')
      AND s.starts < coalesce($3::timestamptz, 'infinity')
    GROUP BY s.type_id, t.name
    ORDER BY sum(s.succeeded) + sum(s.failed) DESC, sum(s.enqueued) DESC, t.name LIMIT $4::integer
)
SELECT t.*, coalesce(w.buckets, '{}') AS wait_buckets, coalesce(w.counts, '{}') AS wait_counts,
       coalesce(r.buckets, '{}') AS run_buckets, coalesce(r.counts, '{}') AS run_counts
FROM total t
CROSS JOIN LATERAL (
    SELECT array_agg(b.bucket ORDER BY b.bucket) AS buckets, array_agg(b.attempts ORDER BY b.bucket) AS counts
    FROM (SELECT u.bucket, sum(u.attempts)::bigint AS attempts
          FROM howdah.statistics s, unnest(s.wait_buckets, s.wait_counts) AS u(bucket, attempts)
          WHERE s.type_id = t.type_id AND s.minutes = $1 AND s.starts >= t.starts AND s.starts < coalesce($3, 'infinity') GROUP BY u.bucket) b) w
CROSS JOIN LATERAL (
    SELECT array_agg(b.bucket ORDER BY b.bucket) AS buckets, array_agg(b.attempts ORDER BY b.bucket) AS counts
    FROM (SELECT u.bucket, sum(u.attempts)::bigint AS attempts
          FROM howdah.statistics s, unnest(s.run_buckets, s.run_counts) AS u(bucket, attempts)
          WHERE s.type_id = t.type_id AND s.minutes = $1 AND s.starts >= t.starts AND s.starts < coalesce($3, 'infinity') GROUP BY u.bucket) b) r
ORDER BY t.succeeded + t.failed DESC, t.enqueued DESC, t.name
