-- Changes jobs that have not ended.

-- Deletes a job in one of the given states from its table, and returns the job. A job whose type this session may not operate
-- on is treated like a missing job. The tables are searched again if no job was found, because another transaction may be
-- moving the job to another table.
CREATE OR REPLACE FUNCTION howdah.take_job(job_id bigint, states howdah.job_state[]) RETURNS howdah.taken_job LANGUAGE plpgsql AS $$
DECLARE
    t howdah.taken_job;
BEGIN
    PERFORM howdah.check_grant('operate', NULL);
    FOR try IN 1..3 LOOP
        FOREACH t.state IN ARRAY states LOOP
            EXECUTE format(
                'DELETE FROM howdah.%I WHERE id = $1 AND howdah.may_type(''operate'', type_id) RETURNING $2, ROW(id, rank, created, timeout_ms, last_token, type_id, attempt, '
                'max_attempts, priority, key, NULL, headers, options, failures, payload)::howdah.waiting, %s', t.state, CASE t.state
                    WHEN 'leased' THEN 'leased_at, broker_id, limited'
                    WHEN 'scheduled' THEN 'leased_at, NULL::integer, NULL::boolean'
                    WHEN 'dead' THEN 'leased_at, NULL::integer, NULL::boolean'
                    ELSE 'NULL::timestamptz, NULL::integer, NULL::boolean' END)
                INTO t USING job_id, t.state;
            IF (t.job).id IS NOT NULL THEN
                RETURN t;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

-- Cancels a job that is not finished, in any state; a worker that runs it is told to stop. Returns false if there is no such
-- job.
CREATE OR REPLACE FUNCTION howdah.cancel(job_id bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t howdah.taken_job := howdah.take_job(job_id, '{scheduled, waiting, ready, leased, dead}');
    j howdah.waiting := t.job;
    w howdah.wakeup;
BEGIN
    IF j.id IS NULL THEN
        RETURN false;
    ELSIF t.state = 'waiting' THEN
        -- The job no longer waits for other jobs.
        DELETE FROM howdah.dependency d WHERE d.job_id = j.id;
    END IF;
    -- Do not store the lease's token: a late ack must be answered LEASE_LOST, and not OK as a repeat.
    INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority, key,
                                headers, options, failures, payload)
    VALUES (j.id, j.created, t.leased_at, now(), j.type_id, 'cancelled', j.attempt, j.max_attempts, j.priority, j.key,
            j.headers, j.options, j.failures, j.payload);
    PERFORM howdah.count_ended(ARRAY[j.type_id], 'cancelled');
    FOR w IN SELECT * FROM howdah.after_end(ARRAY[j.id], ARRAY[j.type_id], ARRAY[j.key], ARRAY[coalesce(j.options, '{}')],
                                            ARRAY['cancelled']::howdah.ending[],
                                            ARRAY[CASE WHEN t.state = 'leased' THEN t.leased_at END]) LOOP
        PERFORM howdah.send_wakeup(w);
    END LOOP;
    IF t.broker_id IS NOT NULL THEN
        PERFORM howdah.notify(format('c %s 0 %s', t.broker_id, j.id));
    END IF;
    IF t.limited THEN
        PERFORM howdah.wake_limited_type(j.type_id);
    END IF;
    PERFORM howdah.record_change('howdah.cancel', j.type_id, j.id);
    RETURN true;
END $$;

-- Makes a scheduled or dead job ready now. A dead job gets all of its attempts again, and jobs that were cancelled because it
-- died are restored. Returns false if the job is neither scheduled nor dead.
CREATE OR REPLACE FUNCTION howdah.retry_now(job_id bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t howdah.taken_job := howdah.take_job(job_id, '{scheduled, dead}');
    j howdah.waiting := t.job;
    key_type integer := coalesce((j.options ->> 'key_type')::integer, j.type_id);
BEGIN
    IF j.id IS NULL THEN
        RETURN false;
    END IF;
    IF t.state = 'dead' THEN
        j.attempt := 0;
        -- A dead job has already started an attempt, so the time by which it had to start no longer applies.
        j.options := nullif(j.options - 'expire_at_us', '{}');
        INSERT INTO howdah.job_key AS k (type_id, key, job_id) SELECT key_type, j.key, j.id WHERE j.key IS NOT NULL
        ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id, version = NULL, held_until = NULL, debounce_until = NULL
        WHERE k.held_until <= now() AND k.next_id IS NULL;
        IF EXISTS (SELECT FROM howdah.job_key k WHERE k.type_id = key_type AND k.key = j.key AND k.job_id <> j.id) THEN
            RAISE EXCEPTION 'another job holds the key % of job %', to_json(j.key), j.id USING ERRCODE = 'HW002';
        END IF;
    END IF;
    j.rank := j.priority * howdah.rank_step(j.type_id) + (extract(epoch FROM now()) * 1000000)::bigint;
    j.options := howdah.with_step(j.options, j.priority, howdah.rank_step(j.type_id));
    IF j.options -> 'coordinated' IS NULL THEN
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
                                  options, failures, payload)
        VALUES (j.id, j.rank, j.created, j.timeout_ms, j.last_token, j.type_id, j.attempt, j.max_attempts, j.priority, j.key, j.headers,
                j.options, j.failures, j.payload);
        PERFORM howdah.announce(j.type_id, j.rank);
    ELSE
        -- A `coordinated` job may have to wait for its limit key. So it becomes a scheduled job that is due now, and
        -- promote_coordinated decides.
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        VALUES (j.id, j.rank, j.created, j.timeout_ms, j.last_token, now(), t.leased_at, j.type_id, j.attempt, j.max_attempts,
                j.priority, j.key, j.headers, j.options, j.failures, j.payload);
        PERFORM howdah.send_wakeup(ROW('scheduled', NULL, NULL, 1, 0)::howdah.wakeup);
        IF t.state = 'dead' THEN
            PERFORM FROM howdah.revive_dependents(ARRAY[j.id]);
        END IF;
    END IF;
    PERFORM howdah.record_change('howdah.retry_now', j.type_id, j.id);
    RETURN true;
END $$;

-- Changes the priority of a job that is not finished; for a running job, the new priority applies from the next attempt.
-- Returns false if there is no such job.
CREATE OR REPLACE FUNCTION howdah.reprioritize(job_id bigint, priority integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    of_type integer;
    new_rank bigint;
BEGIN
    IF howdah.number_of('priority', coalesce(priority::text, 'null'), -1000, 1000) IS NULL THEN
        RETURN false;
    END IF;
    PERFORM howdah.check_grant('operate', NULL);
    FOR try IN 1..3 LOOP
        FOREACH name IN ARRAY ARRAY['scheduled', 'waiting', 'ready', 'leased'] LOOP
            EXECUTE format(
                'UPDATE howdah.%I SET rank = howdah.reranked(rank, priority, options, $2, howdah.rank_step(type_id)), priority = $2, '
                'options = howdah.with_step(options, $2, howdah.rank_step(type_id)) WHERE id = $1 AND howdah.may_type(''operate'', type_id) RETURNING type_id, rank', name)
                INTO of_type, new_rank USING job_id, priority::smallint;
            IF of_type IS NOT NULL THEN
                IF name = 'ready' THEN
                    PERFORM howdah.announce(of_type, new_rank);
                END IF;
                PERFORM howdah.record_change('howdah.reprioritize', of_type, job_id);
                RETURN true;
            END IF;
        END LOOP;
    END LOOP;
    RETURN false;
END $$;
