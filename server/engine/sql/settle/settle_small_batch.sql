-- Acks one job or a few, like settle_ack.sql, with fewer parts, because a short statement starts faster (see enqueue_one.sql).
-- Attempts are counted from the rows, and a function frees the keys of jobs that have one. $1 to $6 as in settle_ack.sql
WITH deleted AS (
    DELETE FROM howdah.leased
    WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND options -> 'coordinated' IS NULL
    RETURNING *
),
kept AS (
    INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts,
                                priority, key, headers, options, failures, payload, result)
    SELECT id, created, leased_at, now(), token, type_id, 'succeeded', attempt, max_attempts, priority, key, headers,
           options, failures, payload, ($3::bytea[])[width_bucket(id, $1::bigint[])]
    FROM deleted
    WHERE NOT (type_id = ANY ($4::integer[]) OR (type_id = ANY ($5::integer[]) AND failures IS NULL
        AND NOT (type_id = ANY ($6::integer[]) AND ($3::bytea[])[width_bucket(id, $1::bigint[])] IS NOT NULL)))
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, succeeded, wait_us, wait_bucket, run_us, run_bucket)
    SELECT type_id, count(*), sum(wait_us), howdah.duration_bucket(wait_us), sum(run_us), howdah.duration_bucket(run_us)
    FROM (SELECT type_id, howdah.waited_us(rank, priority, options, created, leased_at) AS wait_us,
                 howdah.ran_us(leased_at) AS run_us
          FROM deleted OFFSET 0) a
    GROUP BY type_id, howdah.duration_bucket(wait_us), howdah.duration_bucket(run_us)
)
SELECT array_agg(id) AS ids, array_agg(type_id) FILTER (WHERE limited) AS limited_types,
       count(howdah.free_key(type_id, key, id)) FILTER (WHERE key IS NOT NULL) AS keys
FROM deleted
