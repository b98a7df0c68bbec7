-- Returns the jobs that failed last, the newest failure first. All dead jobs are read, by an index-only scan, some 0.2 µs each:
-- an index of all types by time would cost every job that dies. Of the jobs that wait for a retry, it reads only those among
-- the 10,000 scheduled jobs that run soonest.
-- $1 type (null: all) $2 with dead jobs $3 with jobs that wait for a retry $4 error group of dead jobs, or an error of it (null:
-- any) $5 before this time (µs after 1970, null: any) $6 or at this time, and before this id $7 at most
WITH bound AS MATERIALIZED (
    SELECT coalesce('epoch'::timestamptz + $5::bigint * interval '1 microsecond', 'infinity') AS failed
),
dead AS (
    SELECT id, died AS failed FROM howdah.dead
    WHERE $2::boolean AND ($1::integer IS NULL OR type_id = $1)
      AND ($4::text IS NULL OR error_group IN ($4, howdah.error_group($4)))
      AND died <= (SELECT failed FROM bound) AND (died < (SELECT failed FROM bound) OR id < $6::bigint)
    ORDER BY died DESC, id DESC LIMIT $7::integer
),
looked AS (
    SELECT id, type_id, (failures -> -1 ->> 'failed')::timestamptz AS failed
    FROM (SELECT * FROM howdah.scheduled WHERE $3::boolean ORDER BY run_at, id LIMIT 10000) soonest
    WHERE failures IS NOT NULL
),
backing_off AS (
    SELECT id, failed FROM looked
    WHERE ($1 IS NULL OR type_id = $1) AND (failed, id) < ((SELECT failed FROM bound), $6)
    ORDER BY failed DESC, id DESC LIMIT $7
)
SELECT id, (extract(epoch FROM failed) * 1000000)::bigint AS failed_us
FROM (SELECT * FROM dead UNION ALL SELECT * FROM backing_off) u
ORDER BY failed DESC, id DESC LIMIT $7
