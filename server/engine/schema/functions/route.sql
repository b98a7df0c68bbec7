-- Decides in which table a job is stored. Functions that run for single jobs are in plpgsql, which plans each query once per
-- connection. A function of LANGUAGE sql that is not inlined plans its query in each call.

-- Returns the priority step of a type. Frequent statements read the step inline instead, because this function is called for
-- each row.
CREATE OR REPLACE FUNCTION howdah.rank_step(type_id integer) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1), howdah.default_step());
END $$;

-- Returns the table in which a job belongs now.
CREATE OR REPLACE FUNCTION howdah.destination_of(job howdah.waiting) RETURNS howdah.destination LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
        WHEN job.options ? 'queued_behind' OR EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = job.id) THEN 'waiting_for_job'
        WHEN to_timestamp((job.options ->> 'start_us')::bigint / 1000000.0) > now() THEN 'scheduled'
        WHEN job.options ? 'limit_key'
             AND (job.options ? 'limit_max' OR howdah.is_limited(job.type_id, job.options ->> 'limit_key')) THEN 'waiting_for_limit'
        ELSE 'ready' END;
END $$;

-- Inserts jobs, which are new or which the caller has deleted from their tables, into the tables in which they belong now.
CREATE OR REPLACE FUNCTION howdah.route(jobs howdah.waiting[]) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(jobs), 0) = 0 THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM unnest(jobs) j WHERE j.options ? 'fair_key') THEN
        jobs := howdah.fair_ranks(jobs);
    END IF;
    RETURN QUERY
    WITH routed AS MATERIALIZED (
        SELECT j.*, howdah.destination_of(j) AS destination, to_timestamp((j.options ->> 'start_us')::bigint / 1000000.0) AS run_at
        FROM unnest(jobs) j
    ),
    to_ready AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                  key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
               options, failures, payload
        FROM routed WHERE destination = 'ready'
        RETURNING type_id, rank
    ),
    to_scheduled AS (
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, p.run_at, type_id, attempt, max_attempts, priority, key,
               headers, options, failures, payload
        FROM routed p WHERE destination = 'scheduled'
    ),
    to_waiting AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
               CASE destination WHEN 'waiting_for_limit' THEN options ->> 'limit_key' END, headers, options, failures, payload
        FROM routed WHERE destination IN ('waiting_for_job', 'waiting_for_limit')
    ),
    at_limits AS (
        INSERT INTO howdah.limit_state (type_id, limit_key, check_at)
        SELECT DISTINCT p.type_id, (options ->> 'limit_key') COLLATE "C", now() FROM routed p WHERE destination = 'waiting_for_limit'
        ORDER BY 1, 2
        ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET check_at = now()
        RETURNING 1
    )
    SELECT 'ready'::howdah.wakeup_kind, r.type_id, min(r.rank), count(*), NULL::bigint FROM to_ready r GROUP BY r.type_id
    UNION ALL
    SELECT 'scheduled', NULL, NULL, count(*), (extract(epoch FROM min(p.run_at) - now()) * 1000000)::bigint
    FROM routed p WHERE destination = 'scheduled' HAVING count(*) > 0
    UNION ALL
    SELECT 'limit', NULL, NULL, NULL, NULL FROM at_limits HAVING count(*) > 0;
END $$;

-- Moves waiting jobs that may no longer have to wait to the table in which they belong now, in the order of their ids. A job
-- that waits for the holder of its key stays.
CREATE OR REPLACE FUNCTION howdah.reroute_waiting(ids bigint[]) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    -- Two parents of a job may end at once. The second transaction waits here for the first one, and then sees that both have
    -- ended.
    PERFORM FROM howdah.waiting WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    WITH deleted AS (
        DELETE FROM howdah.waiting w WHERE id = ANY (ids) AND w.options -> 'queued_behind' IS NULL
          AND NOT EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = w.id)
        RETURNING w.*
    )
    SELECT array_agg(deleted::howdah.waiting) INTO jobs FROM deleted;
    RETURN QUERY SELECT * FROM howdah.route(jobs);
END $$;

-- Moves jobs from the table scheduled, whose rows the caller has locked, to the tables in which they belong now.
CREATE OR REPLACE FUNCTION howdah.promote_rows(rows tid[]) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    WITH deleted AS (DELETE FROM howdah.scheduled WHERE ctid = ANY (rows) RETURNING *)
    SELECT array_agg(ROW(id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL,
                         headers, options, failures, payload)::howdah.waiting)
    INTO jobs FROM deleted;
    RETURN QUERY SELECT * FROM howdah.route(jobs);
END $$;

-- Promotes due scheduled jobs that have the mark `coordinated`, because they may have to wait for a limit key. If another
-- transaction has locked a row that one of the jobs needs, the jobs are promoted one by one. The order is random, so that
-- locked jobs do not keep the same other jobs from being tried. Jobs that were not promoted stay due for the next sweep.
CREATE OR REPLACE FUNCTION howdah.promote_coordinated(at_most integer) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    due tid[];
    one tid;
    wakeups howdah.wakeup[];
    new_wakeups howdah.wakeup[];
BEGIN
    due := ARRAY(
        SELECT ctid FROM howdah.scheduled
        WHERE run_at <= now() AND options -> 'coordinated' IS NOT NULL
        ORDER BY run_at, id LIMIT at_most
        FOR UPDATE SKIP LOCKED);
    IF cardinality(due) = 0 THEN
        RETURN;
    END IF;
    BEGIN
        wakeups := ARRAY(SELECT w FROM howdah.promote_rows(due) w);
    EXCEPTION WHEN lock_not_available THEN
        wakeups := '{}';
        PERFORM set_config('lock_timeout', '2ms', true);
        FOR one IN SELECT d FROM unnest(due) d ORDER BY random() LOOP
            BEGIN
                new_wakeups := ARRAY(SELECT w FROM howdah.promote_rows(ARRAY[one]) w);
                wakeups := wakeups || new_wakeups;
            EXCEPTION WHEN lock_not_available THEN
                -- Stop after a second, so that the rows that this transaction has locked are not held for long.
                EXIT WHEN clock_timestamp() > now() + interval '1 second';
            END;
        END LOOP;
    END;
    RETURN QUERY SELECT * FROM unnest(wakeups);
END $$;
