-- Fills a large system for bench/page.py by direct inserts, with jobs as Howdah would have left them: all job
-- states, 200 task types (the first has more than half of all jobs), dead jobs of eight error groups, and
-- statistics of the whole period. For psql.
-- Variables: ready and finished (numbers of jobs), days (number of days over which the finished jobs ended).
\set ON_ERROR_STOP on
SET synchronous_commit = off;
-- Disables parallel plans, to leave processor time for the brokers that use the same Postgres.
SET max_parallel_workers_per_gather = 0;

INSERT INTO howdah.task_type (name) SELECT format('load.type-%s', to_char(n, 'FM000')) FROM generate_series(1, 200) n;
UPDATE howdah.task_type SET max_running = 50, key_max_running = 1 WHERE name = 'load.type-003';
CREATE TEMP TABLE load_type AS
    SELECT id, row_number() OVER (ORDER BY name) - 1 AS n FROM howdah.task_type WHERE name LIKE 'load.type-%';
-- Number of the i-th job's type. Type 0 gets most jobs.
CREATE FUNCTION pg_temp.type_of(i bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT CASE WHEN i % 10 < 6 THEN 0 WHEN i % 10 < 9 THEN 1 + i / 10 % 9 ELSE i / 10 % 200 END $$;
CREATE FUNCTION pg_temp.failures(i bigint) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_array(jsonb_build_object('attempt', 1, 'error', format('smtp %s: host %s refused the connection', chr(65 + (i % 8)::integer), i),
                                                'started', now() - interval '1 hour', 'failed', now() - interval '59 minutes')) $$;

SELECT count(howdah.make_day_partition('history', 'finished', ((now() AT TIME ZONE 'UTC')::date - d)::date)) AS days_made
FROM generate_series(0, :days) d;

\echo finished
-- Inserts one day of history per statement, to commit between days and fill each partition once.
SELECT format($$INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts, priority, key, headers, payload)
    SELECT i, at - interval '2 s', at - interval '1 s', at, i, t.id,
           CASE WHEN i %% 1000 = 0 THEN 'cancelled' ELSE 'succeeded' END::howdah.job_state, 1, 5, 0,
           CASE WHEN i %% 20 = 0 THEN format('order %%s', i) END,
           CASE WHEN i %% 50 = 0 THEN jsonb_build_object('tenant', format('t%%s', i %% 1000)) END,
           convert_to(format('{"order":%%s,"to":"ann@example.com"}', i), 'UTF8')
    FROM (SELECT i, now() - make_interval(secs => (%2$s - i) * %3$s) AS at FROM generate_series(%1$s, %1$s + %4$s - 1) i) g
    JOIN load_type t ON t.n = pg_temp.type_of(i)$$,
    d * (:finished / :days) + 1, :finished, (:days * 86400.0) / :finished, :finished / :days)
FROM generate_series(0, :days - 1) d
\gexec
SELECT setval('howdah.job_id', :finished);

\echo ready
INSERT INTO howdah.ready (id, rank, created, type_id, attempt, max_attempts, priority, key, headers, payload)
SELECT nextval('howdah.job_id'), (extract(epoch FROM now() - make_interval(secs => (:ready - i) / 1000.0)) * 1000000)::bigint,
       now() - make_interval(secs => (:ready - i) / 1000.0), t.id, 0, 5, 0, CASE WHEN i % 20 = 0 THEN format('order r%s', i) END,
       CASE WHEN i % 50 = 0 THEN jsonb_build_object('tenant', format('t%s', i % 1000)) END,
       convert_to(format('{"order":%s,"to":"bob@example.com"}', i), 'UTF8')
FROM generate_series(1, :ready) i JOIN load_type t ON t.n = pg_temp.type_of(i);
INSERT INTO howdah.job_key (type_id, key, job_id) SELECT type_id, key, id FROM howdah.ready WHERE key IS NOT NULL ON CONFLICT DO NOTHING;

\echo others
-- Scheduled jobs that are due tomorrow, so that none of them runs during the benchmark. Every tenth job has failed
-- once.
INSERT INTO howdah.scheduled (id, rank, created, run_at, leased_at, type_id, attempt, max_attempts, priority, failures, payload)
SELECT nextval('howdah.job_id'), 0, now(), now() + interval '1 day' + make_interval(secs => i), CASE WHEN i % 10 = 0 THEN now() END, t.id,
       CASE WHEN i % 10 = 0 THEN 1 ELSE 0 END, 5, 0, CASE WHEN i % 10 = 0 THEN pg_temp.failures(i) END, 'later'
FROM generate_series(1, :ready / 25) i JOIN load_type t ON t.n = pg_temp.type_of(i);
INSERT INTO howdah.dead (id, rank, created, leased_at, died, type_id, attempt, max_attempts, priority, failures, payload)
SELECT nextval('howdah.job_id'), 0, now(), now(), now(), t.id, 5, 5, 0, pg_temp.failures(i), convert_to(format('{"order":%s}', i), 'UTF8')
FROM generate_series(1, :ready / 50) i JOIN load_type t ON t.n = pg_temp.type_of(i);
-- Jobs that wait for a limit key, most of them for the same key; and jobs that depend on a ready job.
INSERT INTO howdah.waiting (id, rank, created, type_id, attempt, max_attempts, priority, limit_key, options, payload)
SELECT nextval('howdah.job_id'), (extract(epoch FROM now()) * 1000000)::bigint + i, now(), t.id, 0, 5, 0, k.key, jsonb_build_object('limit_key', k.key), 'waits'
FROM generate_series(1, :ready / 50) i JOIN load_type t ON t.n = 2
CROSS JOIN LATERAL (SELECT CASE WHEN i % 4 < 3 THEN 'tenant 0' ELSE format('tenant %s', i % 2000) END AS key) k;
INSERT INTO howdah.limit_state (type_id, limit_key, paused_until)
SELECT DISTINCT type_id, limit_key, now() + interval '10 days' FROM howdah.waiting WHERE limit_key IS NOT NULL;
INSERT INTO howdah.waiting (id, rank, created, type_id, attempt, max_attempts, priority, options, payload)
SELECT nextval('howdah.job_id'), 0, now(), t.id, 0, 5, 0, '{"coordinated":true}', 'waits'
FROM generate_series(1, :ready / 500) i JOIN load_type t ON t.n = 3;
INSERT INTO howdah.dependency (after_id, job_id)
SELECT (SELECT min(id) FROM howdah.ready), id FROM howdah.waiting WHERE limit_key IS NULL;
INSERT INTO howdah.audit (time, principal, broker, peer, method, types, count, ids, reason)
SELECT now() - make_interval(secs => i), format('person-%s', i % 20), 'load', '127.0.0.1', 'RetryJobs', ARRAY['load.type-001'], 3, ARRAY['1', '2', '3'], 'a test'
FROM generate_series(1, 200000) i;

\echo statistics
INSERT INTO howdah.statistics (type_id, minutes, starts, enqueued, succeeded, failed, dead, cancelled, expired, wait_us, run_us,
                               wait_buckets, wait_counts, run_buckets, run_counts)
SELECT t.id, p.minutes, date_bin(make_interval(mins => p.minutes), now(), '1970-01-01 00:00:00+00') - make_interval(mins => p.minutes * i),
       1000, 990, 10, 1, 0, 0, 1e9, 1e10, b.buckets, b.counts, b.buckets, b.counts
FROM load_type t
CROSS JOIN (VALUES (1::smallint, 120), (60::smallint, 2159), (1440::smallint, 89)) p(minutes, periods)
CROSS JOIN LATERAL generate_series(0, p.periods) i
CROSS JOIN (SELECT array_agg(g::smallint) AS buckets, array_agg(50::bigint) AS counts FROM generate_series(40, 79, 2) g) b;

\echo vacuum
VACUUM ANALYZE;
CHECKPOINT;
