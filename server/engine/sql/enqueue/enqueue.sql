-- Enqueues plain jobs, which may run at once and have no key: the most frequent case, in one statement for all jobs that the
-- broker has queued. rank_base is priority * the type's step. The time is read once, not once per row.
-- * Ids are allotted first, in the order of the arrays. So the i-th id belongs to the i-th job, and a request's ids are a slice
--   of them.
-- * An existing request key fails the statement, which is rare. The broker then calls enqueue_keyed.sql. Keys are sorted, so
--   that two brokers cannot deadlock.
-- * A closed store refuses the jobs. While the store is open, Postgres removes this check from the plan (howdah.is_closed).
-- $1 type_id[] $2 rank_base[] $3 priority[] $4 max_attempts[] $5 timeout_ms[] $6 headers[] $7 options[] $8 payload[]; an array
-- with only null entries may be null
-- $9 request key[] $10 body hash[] $11 first[] $12 last[]: requests with a key, and the range of their jobs
-- $13 ordinal[] $14 data[]: payloads that are stored out of line, and their jobs
-- $15 type_id[] $16 jobs[]: number of jobs of each type, for statistics
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now_us),
allotted AS MATERIALIZED (
    SELECT array_agg(nextval('howdah.job_id')) AS ids FROM generate_series(1, array_length($1::integer[], 1))
    WHERE CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
),
stored AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers,
                              options, payload)
    SELECT j.id, j.rank_base + (SELECT now_us FROM clock), now(), j.timeout_ms,
           j.type_id, 0, j.max_attempts, j.priority, j.headers, j.options, j.payload
    FROM unnest((SELECT ids FROM allotted), $1::integer[], $2::bigint[], $3::smallint[], $4::smallint[],
                $5::bigint[], $6::jsonb[], $7::jsonb[], $8::bytea[])
        AS j(id, type_id, rank_base, priority, max_attempts, timeout_ms, headers, options, payload)
),
out_of_line AS (
    INSERT INTO howdah.payload (id, created, data)
    SELECT (SELECT ids FROM allotted)[p.ordinal], now(), p.data
    FROM unnest($13::integer[], $14::bytea[]) AS p(ordinal, data)
),
repeatable AS (
    INSERT INTO howdah.request (key, body_hash, ids)
    SELECT r.key, r.body_hash, (SELECT ids FROM allotted)[r.first:r.last]
    FROM unnest($9::text[], $10::bytea[], $11::integer[], $12::integer[]) AS r(key, body_hash, first, last)
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT t.type_id, t.jobs FROM unnest($15::integer[], $16::integer[]) AS t(type_id, jobs)
)
SELECT ids, (SELECT now_us FROM clock) AS now_us FROM allotted
