-- Acks jobs. ids ($1) must be sorted and unique: width_bucket finds a row's position in them by binary search, so each row is
-- compared with its own token only. Alternatives are worse: token = ANY ($2) would accept the token of another job of the
-- batch, and is 8 to 18 % slower with batches of 500; with a join on unnest the planner may choose a scan, which is 6 times
-- slower. Jobs with the mark `coordinated` (their end affects other jobs) are skipped. The caller passes all jobs that this
-- statement did not find to howdah.ack_coordinated. Statistics: a broker that knows when its jobs became ready and started
-- sends the attempts in groups ($7 to $11), which costs a fifth of grouping the rows here. The rows are grouped here if an
-- ack has no effect, or if a start is not known.
-- $1 id[] $2 token[] $3 result[] (null: none) $4 types that keep no succeeded jobs $5 types that keep succeeded jobs only if
-- they failed before $6 types of $5 that also keep jobs with a result; mostly all three are empty
-- Attempts in groups (null: not known): $7 type_id[] $8 start[] (µs after 1970) $9 wait_bucket[] $10 attempts[] $11 sum of
-- their wait times[] (µs)
WITH deleted AS (
    DELETE FROM howdah.leased
    WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND options -> 'coordinated' IS NULL
    RETURNING *
),
-- LATERAL … OFFSET 0 forces an index look-up for each row with a key; without such rows, nothing is read.
unkeyed AS (
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM deleted g CROSS JOIN LATERAL (
            SELECT j.ctid FROM howdah.job_key j
            WHERE j.type_id = g.type_id AND j.key = g.key AND j.job_id = g.id AND j.held_until IS NULL
            OFFSET 0) k
        WHERE g.key IS NOT NULL))
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
answer AS MATERIALIZED (
    SELECT array_agg(id) AS ids, array_agg(type_id) FILTER (WHERE limited) AS limited_types,
           $7::integer[] IS NOT NULL AND count(*) = cardinality($1::bigint[]) AS are_known
    FROM deleted
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, succeeded, wait_us, wait_bucket, run_us, run_bucket)
    SELECT type_id, sum(jobs), sum(wait_us), wait_bucket, sum(jobs * run_us), howdah.duration_bucket(run_us)
    FROM (
        SELECT g.type_id, g.jobs, g.wait_us, g.wait_bucket,
               greatest((date_part('epoch', now()) * 1000000)::bigint - g.start_us, 0) AS run_us
        FROM unnest($7, $8::bigint[], $9::smallint[], $10::bigint[], $11::bigint[])
            AS g(type_id, start_us, wait_bucket, jobs, wait_us)
        WHERE (SELECT are_known FROM answer)
        UNION ALL
        SELECT type_id, jobs, jobs * wait_us, howdah.duration_bucket(wait_us), howdah.ran_us(leased_at)
        FROM (SELECT type_id, leased_at, howdah.waited_us(rank, priority, options, created, leased_at) AS wait_us, count(*) AS jobs
              FROM deleted WHERE NOT (SELECT are_known FROM answer) GROUP BY 1, 2, 3) d
    ) a
    GROUP BY type_id, wait_bucket, howdah.duration_bucket(run_us)
)
SELECT ids, limited_types FROM answer
