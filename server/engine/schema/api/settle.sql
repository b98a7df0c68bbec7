-- Ends an attempt, in the transaction of the worker's own writes.

-- Raises the error for a lost lease. The error also aborts the caller's transaction, so its writes are not committed.
CREATE OR REPLACE FUNCTION howdah.lease_lost(job_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the lease of job % is lost: it was settled, timed out, cancelled or given to another worker', job_id
        USING ERRCODE = 'HW003', HINT = 'Roll back this transaction: the writes of a lost attempt must not be committed.';
END $$;

-- Completes a job in the transaction of the worker's own writes: both are committed, or neither.
CREATE OR REPLACE FUNCTION howdah.complete(job_id bigint, token bigint, result bytea DEFAULT NULL, next_stage text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    r record;
    next_type integer;
    done boolean := false;
    most integer;
BEGIN
    IF howdah.has_grants() THEN
        PERFORM howdah.check_lease(job_id, token);
    END IF;
    -- At least 1,024 bytes are always allowed (tables/settings.sql), so most results need no look-up of the settings.
    IF octet_length(result) > 1024 THEN
        SELECT s.payload_bytes INTO STRICT most FROM howdah.settings s;
        IF octet_length(result) > most THEN
            PERFORM howdah.refuse('result', format('has %s bytes; at most %s are allowed', octet_length(result), most));
        END IF;
    END IF;
    IF next_stage IS NOT NULL THEN
        next_type := (howdah.type_named(next_stage, 'next_stage')).id;
    END IF;
    FOR r IN SELECT * FROM howdah.ack_coordinated(ARRAY[job_id], ARRAY[token], ARRAY[nullif(result, '')], ARRAY[next_type]) LOOP
        IF r.kind IS NOT NULL THEN
            PERFORM howdah.send_wakeup(ROW(r.kind, r.type_id, r.rank, r.jobs, r.in_us)::howdah.wakeup);
        ELSE
            done := true;
            IF r.type_id IS NOT NULL THEN
                PERFORM howdah.count_for_brake(r.type_id, true, 0);
                PERFORM howdah.wake_limited_type(r.type_id);
            END IF;
        END IF;
    END LOOP;
    IF NOT done THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION howdah.complete(job_id bigint, token bigint, result text, next_stage text DEFAULT NULL) RETURNS void LANGUAGE sql
    RETURN howdah.complete(job_id, token, convert_to(result, 'UTF8'), next_stage);
CREATE OR REPLACE FUNCTION howdah.complete(job_id bigint, token bigint, result jsonb, next_stage text DEFAULT NULL) RETURNS void LANGUAGE sql
    RETURN howdah.complete(job_id, token, convert_to(result::text, 'UTF8'), next_stage);

-- Ends a lease without an ack, like sql/settle/settle_nack.sql. The attempt counts as failed, unless snooze is true. delay_ms:
-- delay until the next attempt; null: by the retry policy. dead: the job gets no further attempt. Returns the new state of the
-- job.
CREATE OR REPLACE FUNCTION howdah.nack(job_id bigint, token bigint, snooze boolean, dead boolean, delay_ms bigint, error text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l howdah.leased;
    into_type integer;
    attempts smallint;
    fails jsonb;
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    step bigint;
    o jsonb;
    state text;
    held bigint;
    w howdah.wakeup;
    settled_token bigint := token # CASE WHEN snooze THEN 3 WHEN dead THEN 2 ELSE 1 END;
BEGIN
    DELETE FROM howdah.leased r WHERE r.id = job_id AND r.token = nack.token RETURNING r.* INTO l;
    IF NOT FOUND THEN
        PERFORM FROM howdah.regain(ARRAY[job_id], ARRAY[token]);
        DELETE FROM howdah.leased r WHERE r.id = job_id AND r.token = nack.token RETURNING r.* INTO l;
        IF NOT FOUND THEN
            PERFORM howdah.lease_lost(job_id);
        END IF;
    END IF;
    dead := dead OR NOT snooze AND l.attempt >= l.max_attempts;
    into_type := coalesce(CASE WHEN dead THEN howdah.fallback_of(l.type_id, l.options) END, l.type_id);
    step := howdah.rank_step(into_type);
    o := CASE WHEN into_type <> l.type_id THEN howdah.in_fallback(l.options, l.type_id)
              WHEN snooze AND l.options -> 'expire_at_us' IS NOT NULL THEN l.options - 'expire_at_us' ELSE l.options END;
    o := howdah.with_step(o, l.priority, step);
    attempts := CASE WHEN snooze THEN l.attempt - 1 ELSE l.attempt END;
    fails := CASE WHEN snooze THEN l.failures ELSE howdah.add_failure(l.failures, l.attempt, error, l.leased_at) END;
    IF NOT snooze THEN
        PERFORM howdah.count_attempts(ARRAY[l], true, dead AND into_type = l.type_id);
    END IF;
    IF into_type <> l.type_id THEN
        PERFORM howdah.count_enqueued(ARRAY[into_type]);
        IF o ? 'tags' THEN
            PERFORM howdah.index_tags(l.id, into_type, o);
        END IF;
    END IF;
    delay_ms := coalesce(delay_ms, howdah.retry_delay_ms(l.type_id, l.options, l.attempt));
    IF dead AND into_type = l.type_id THEN
        state := 'dead';
        INSERT INTO howdah.dead (id, rank, created, timeout_ms, last_token, leased_at, died, type_id, attempt, max_attempts,
                                 priority, key, headers, options, failures, payload)
        VALUES (l.id, howdah.reranked(l.rank, l.priority, l.options, l.priority, step), l.created, l.timeout_ms, settled_token, l.leased_at,
                now(), l.type_id, attempts, l.max_attempts, l.priority, l.key, l.headers, o, fails, l.payload);
    ELSIF NOT dead AND delay_ms > 0 THEN
        state := 'scheduled';
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        VALUES (l.id, l.priority * step + now_us + delay_ms * 1000, l.created, l.timeout_ms, settled_token,
                now() + delay_ms * interval '1 millisecond', l.leased_at, l.type_id, attempts, l.max_attempts, l.priority, l.key,
                l.headers, o, fails, l.payload);
        PERFORM howdah.send_wakeup(ROW('scheduled', NULL, NULL, 1, delay_ms * 1000)::howdah.wakeup);
    ELSE
        state := CASE WHEN dead THEN 'fallback' ELSE 'ready' END;
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
                                  headers, options, failures, payload)
        VALUES (l.id, l.priority * step + now_us, l.created, l.timeout_ms, settled_token, into_type, CASE WHEN dead THEN 0 ELSE attempts END,
                CASE WHEN dead THEN coalesce((SELECT t.max_attempts FROM howdah.task_type t WHERE t.id = into_type), l.max_attempts)
                     ELSE l.max_attempts END, l.priority, CASE WHEN NOT dead THEN l.key END, l.headers, o, fails, l.payload);
    END IF;
    IF NOT snooze AND state IN ('ready', 'scheduled') AND l.key IS NOT NULL AND l.options -> 'coordinated' IS NOT NULL THEN
        PERFORM FROM howdah.supersede(ARRAY[l.id], ARRAY[l.type_id], ARRAY[l.key], ARRAY[l.options]);
        state := CASE WHEN FOUND THEN 'cancelled' ELSE state END;
    END IF;
    IF state <> 'ready' THEN
        FOR w IN SELECT * FROM howdah.after_end(ARRAY[l.id], ARRAY[l.type_id], ARRAY[l.key], ARRAY[coalesce(l.options, '{}') - 'limit_key'],
                ARRAY[CASE WHEN state IN ('dead', 'fallback', 'cancelled') THEN state ELSE 'moved' END]::howdah.ending[]) LOOP
            PERFORM howdah.send_wakeup(w);
        END LOOP;
    END IF;
    -- Lock limit states after all other rows, as in Store::settle_nacks, to avoid deadlocks.
    IF l.options -> 'limit_key' IS NOT NULL THEN
        FOR held IN SELECT * FROM howdah.requeue_for_limit(ARRAY[l.id], ARRAY[l.type_id], ARRAY[l.options], ARRAY[l.leased_at]) LOOP
            PERFORM howdah.send_wakeup(ROW('limit', NULL, NULL, NULL, NULL)::howdah.wakeup);
            state := CASE WHEN held IS NULL THEN state ELSE 'waiting' END;
        END LOOP;
    END IF;
    IF state IN ('ready', 'fallback') THEN
        PERFORM howdah.announce(into_type, l.priority * step + now_us);
    END IF;
    IF l.limited THEN
        IF NOT snooze THEN
            PERFORM howdah.count_for_brake(l.type_id, false, 1);
        END IF;
        PERFORM howdah.wake_limited_type(l.type_id);
    END IF;
    RETURN state;
END $$;

-- Truncates an error to 16 KiB, and marks a truncated error.
CREATE OR REPLACE FUNCTION howdah.short_error(error text) RETURNS text LANGUAGE sql
    RETURN CASE WHEN octet_length(error) > 16384
                THEN left(error, CASE WHEN octet_length(error) = length(error) THEN 16300 ELSE 4000 END) || '... [truncated]'
                ELSE coalesce(error, '') END;

-- Ends an attempt that failed. The job is retried after the delay of its retry policy or after retry_after, unless its attempts
-- are used up or no_retry is true. Returns where the job is now: ready (waiting if it must wait for its limit key), scheduled,
-- dead or fallback; or cancelled, if a newer job with the same key was waiting and runs instead.
CREATE OR REPLACE FUNCTION howdah.fail(job_id bigint, token bigint, error text, retry_after interval DEFAULT NULL, no_retry boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF howdah.has_grants() THEN
        PERFORM howdah.check_lease(job_id, token);
    END IF;
    RETURN howdah.nack(job_id, token, false, coalesce(no_retry, false),
                       howdah.ms_of('retry_after', retry_after::text, '0', '365 days'), howdah.short_error(error));
END $$;

-- Ends an attempt that does not count; the job runs again after the delay.
CREATE OR REPLACE FUNCTION howdah.snooze(job_id bigint, token bigint, delay interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF howdah.has_grants() THEN
        PERFORM howdah.check_lease(job_id, token);
    END IF;
    IF delay IS NULL THEN
        PERFORM howdah.refuse('delay', 'is null; 0 s to 365 days is allowed');
    END IF;
    RETURN howdah.nack(job_id, token, true, false, howdah.ms_of('delay', delay::text, '0', '365 days'), NULL);
END $$;

-- Moves the deadline of an attempt to now plus a duration, and returns the new deadline.
CREATE OR REPLACE FUNCTION howdah.extend(job_id bigint, token bigint, duration interval) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most interval;
    until timestamptz;
BEGIN
    IF howdah.has_grants() THEN
        PERFORM howdah.check_lease(job_id, token);
    END IF;
    SELECT s.max_timeout INTO STRICT most FROM howdah.settings s;
    until := clock_timestamp() + howdah.ms_of('duration', coalesce(duration::text, 'null'), '1 ms', most) * interval '1 ms';
    UPDATE howdah.leased l SET deadline = until WHERE l.id = job_id AND l.token = extend.token;
    IF NOT FOUND THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
    RETURN until;
END $$;

-- Ends the lease of a running job, for operators. With an error the attempt fails, and the retry policy determines the next
-- attempt. Without an error the attempt does not count, and the job is ready again. The worker is notified within two seconds,
-- and its later outcome is refused. Returns where the job is now, as howdah.fail does; null: no worker has the job.
CREATE OR REPLACE FUNCTION howdah.end_lease(job_id bigint, error text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    token bigint;
    of_type integer;
    state text;
BEGIN
    PERFORM howdah.check_grant('operate', NULL);
    SELECT l.token, l.type_id INTO token, of_type FROM howdah.leased l
    WHERE l.id = job_id AND howdah.may_type('operate', l.type_id) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    state := CASE WHEN error IS NULL THEN howdah.nack(job_id, token, true, false, 0, NULL)
                  ELSE howdah.nack(job_id, token, false, false, NULL, howdah.short_error(error)) END;
    -- Delete the token: a later outcome of the worker must not be answered OK as a repeat.
    UPDATE howdah.ready r SET last_token = NULL WHERE r.id = job_id;
    UPDATE howdah.scheduled s SET last_token = NULL WHERE s.id = job_id;
    UPDATE howdah.waiting w SET last_token = NULL WHERE w.id = job_id;
    UPDATE howdah.dead d SET last_token = NULL WHERE d.id = job_id;
    PERFORM howdah.record_change('howdah.end_lease', of_type, job_id);
    RETURN state;
END $$;
