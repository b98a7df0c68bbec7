-- Statistics of a type by period, oldest first. $1 type_id $2 minutes (1, 60 or 1440) $3 since $4 until (null: no bound)
SELECT t.name, s.starts, s.enqueued, s.succeeded, s.failed, s.dead, s.cancelled, s.expired,
       s.wait_us::double precision AS wait_us, s.run_us::double precision AS run_us,
       s.wait_buckets, s.wait_counts, s.run_buckets, s.run_counts
FROM howdah.statistics s JOIN howdah.task_type t ON t.id = s.type_id
WHERE s.type_id = $1::integer AND s.minutes = $2::smallint
  AND s.starts >= coalesce(date_bin(make_interval(mins => $2), $3::timestamptz, '1970-01-01 00:00:00+00'), '-infinity')
  AND s.starts < coalesce($4::timestamptz, 'infinity')
ORDER BY s.starts
