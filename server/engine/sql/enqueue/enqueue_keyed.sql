-- Enqueues jobs of requests with a request key, a job key or a start time. One statement decides the outcome of each job, in
-- this order: the request key is new (otherwise the whole request is a repeat); the key of the job is free (otherwise the
-- answer is the job that holds it); the job may run now (ready) or later (scheduled).
-- A closed store refuses the jobs, as in enqueue.sql.
-- Keys are inserted in sorted order, so that two brokers cannot deadlock.
-- $1..$12 one entry per job $13..$15 one entry per request with a request key $16 ordinal[] $17 data[]: payloads that are
-- stored out of line, and their jobs
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now_us),
input AS MATERIALIZED (
    SELECT nextval('howdah.job_id') AS id, j.ordinal, j.request_no, j.type_id, j.rank_base, j.priority,
           j.max_attempts, j.timeout_ms, j.key, j.headers, j.options, j.payload,
           greatest(coalesce(j.run_at_us, (SELECT now_us FROM clock) + j.delay_ms * 1000),
                    (SELECT now_us FROM clock)) AS start_us
    FROM unnest($1::integer[], $2::integer[], $3::bigint[], $4::smallint[], $5::smallint[], $6::bigint[],
                $7::text[], $8::jsonb[], $9::jsonb[], $10::bytea[], $11::bigint[], $12::bigint[]) WITH ORDINALITY
        AS j(request_no, type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options,
             payload, run_at_us, delay_ms, ordinal)
    WHERE CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
),
keyed_request AS MATERIALIZED (
    SELECT r.request_no, r.key, r.body_hash
    FROM unnest($13::integer[], $14::text[], $15::bytea[]) AS r(request_no, key, body_hash)
),
repeatable AS (
    INSERT INTO howdah.request (key, body_hash, ids)
    SELECT r.key, r.body_hash, i.ids
    FROM keyed_request r
    JOIN (SELECT request_no, array_agg(id) AS ids FROM input GROUP BY request_no) i USING (request_no)
    ORDER BY r.key COLLATE "C"
    ON CONFLICT (key) DO NOTHING
    RETURNING key
),
repeated AS MATERIALIZED (
    SELECT request_no FROM keyed_request WHERE key NOT IN (SELECT key FROM repeatable)
),
keyed AS (
    INSERT INTO howdah.job_key (type_id, key, job_id)
    SELECT type_id, key, id FROM input
    WHERE key IS NOT NULL AND request_no NOT IN (SELECT request_no FROM repeated)
    ORDER BY type_id, key COLLATE "C", id
    ON CONFLICT (type_id, key) DO NOTHING
    RETURNING job_id
),
decided AS MATERIALIZED (
    SELECT input.*, CASE
        WHEN request_no IN (SELECT request_no FROM repeated) THEN 'repeated'
        WHEN key IS NOT NULL AND id NOT IN (SELECT job_id FROM keyed) THEN 'kept'
        WHEN start_us <= (SELECT now_us FROM clock) OR start_us IS NULL THEN 'ready'
        ELSE 'scheduled' END AS outcome
    FROM input
),
out_of_line AS (
    INSERT INTO howdah.payload (id, created, data)
    SELECT f.id, now(), p.data
    FROM unnest($16::integer[], $17::bytea[]) AS p(ordinal, data) JOIN decided f ON f.ordinal = p.ordinal AND f.outcome IN ('ready', 'scheduled')
),
now_ready AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, key,
                              headers, options, payload)
    SELECT id, rank_base + (SELECT now_us FROM clock), now(), timeout_ms, type_id, 0, max_attempts, priority,
           key, headers, options, payload
    FROM decided WHERE outcome = 'ready'
),
later AS (
    INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, run_at, type_id, attempt, max_attempts,
                                  priority, key, headers, options, payload)
    SELECT id, rank_base + start_us, now(), timeout_ms, to_timestamp(start_us / 1000000.0), type_id, 0,
           max_attempts, priority, key, headers, options, payload
    FROM decided WHERE outcome = 'scheduled'
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT type_id, count(*) FROM decided WHERE outcome IN ('ready', 'scheduled') GROUP BY type_id
)
SELECT id, outcome, CASE outcome WHEN 'scheduled' THEN start_us - (SELECT now_us FROM clock) END AS due_in_us,
       (SELECT now_us FROM clock) AS now_us
FROM decided
