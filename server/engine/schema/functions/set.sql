-- Sets fields of jobs, for a bulk operation. `wanted` is a JSON object with max_attempts, timeout_ms, start_us or delay_ms,
-- add_tags, remove_tags; a missing field stays unchanged.

-- Returns the new start time of the jobs in µs after 1970; null: the start time stays unchanged.
CREATE OR REPLACE FUNCTION howdah.start_to_set(wanted jsonb) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((wanted ->> 'start_us')::bigint,
                    (extract(epoch FROM now()) * 1000000)::bigint + (wanted ->> 'delay_ms')::bigint * 1000)
$$;

-- Returns the new max_attempts of a job. If necessary, raises the value so that a job that is not dead has one attempt left: a
-- claim must not find a job without attempts.
CREATE OR REPLACE FUNCTION howdah.attempts_to_set(wanted jsonb, of_state howdah.job_state, attempt smallint, max_attempts smallint)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT wanted ? 'max_attempts' THEN max_attempts
                ELSE greatest((wanted ->> 'max_attempts')::smallint,
                              CASE of_state WHEN 'dead' THEN 0 WHEN 'leased' THEN attempt ELSE attempt + 1 END)::smallint END
$$;

-- Returns the new tags of a job, in their order; null: no tags. options may be malformed, because roles with SQL access may
-- have written them.
CREATE OR REPLACE FUNCTION howdah.tags_to_set(wanted jsonb, options jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(t.tag ORDER BY t.is_new, t.n)
    FROM (SELECT o.tag, false AS is_new, o.n
          FROM jsonb_array_elements_text(CASE jsonb_typeof(options -> 'tags') WHEN 'array' THEN options -> 'tags' ELSE '[]' END)
               WITH ORDINALITY AS o(tag, n)
          WHERE NOT coalesce(wanted -> 'remove_tags' ? o.tag, false)
          UNION ALL
          SELECT a.tag, true, a.n
          FROM jsonb_array_elements_text(coalesce(wanted -> 'add_tags', '[]')) WITH ORDINALITY AS a(tag, n)
          WHERE NOT coalesce(options -> 'tags' ? a.tag, false)) t
$$;

-- Returns the options of a job with its new tags.
CREATE OR REPLACE FUNCTION howdah.options_to_set(wanted jsonb, options jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT wanted ?| '{add_tags,remove_tags}' THEN options
                WHEN howdah.tags_to_set(wanted, options) IS NULL THEN nullif(options - 'tags', '{}')
                ELSE coalesce(options, '{}') || jsonb_build_object('tags', howdah.tags_to_set(wanted, options)) END
$$;

-- Returns whether the bulk operation would change a job.
CREATE OR REPLACE FUNCTION howdah.would_change(wanted jsonb, of_state howdah.job_state, j howdah.locked_job) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    start_us bigint := howdah.start_to_set(wanted);
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    job_start_us bigint := (j.options ->> 'start_us')::bigint;
BEGIN
    RETURN howdah.attempts_to_set(wanted, of_state, j.attempt, j.max_attempts) <> j.max_attempts
        OR wanted ? 'timeout_ms' AND (wanted ->> 'timeout_ms')::bigint IS DISTINCT FROM j.timeout_ms
        OR wanted ?| '{add_tags,remove_tags}' AND howdah.tags_to_set(wanted, j.options) IS DISTINCT FROM j.options -> 'tags'
        OR CASE WHEN start_us IS NULL THEN false
                WHEN of_state = 'ready' THEN start_us > now_us
                WHEN of_state = 'scheduled' AND start_us > now_us THEN j.run_at <> to_timestamp(start_us / 1000000.0)
                WHEN of_state = 'scheduled' THEN j.run_at > now()
                WHEN of_state = 'waiting' AND start_us > now_us THEN job_start_us IS DISTINCT FROM start_us
                WHEN of_state = 'waiting' THEN coalesce(job_start_us > now_us, false)
                ELSE false END;
END $$;

-- Returns why a job cannot be changed; null: the job can be changed.
CREATE OR REPLACE FUNCTION howdah.why_not_set(wanted jsonb, j howdah.locked_job) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- Maximum number of tags of a job; equals Limits::TAGS in the broker.
    most CONSTANT integer := 16;
    tags integer := CASE WHEN wanted ? 'add_tags' THEN jsonb_array_length(howdah.tags_to_set(wanted, j.options)) END;
BEGIN
    RETURN CASE
        WHEN tags > most THEN format('it would have %s tags; at most %s are allowed', tags, most)
        WHEN j.attempt = 0 AND (j.options ->> 'expire_at_us')::bigint < howdah.start_to_set(wanted) THEN
            'it has to start before that time, or it expires'
        END;
END $$;

-- Changes the start time of locked jobs, which are all in the same state. Ready jobs, and jobs that wait for a slot of their
-- limit key, become scheduled. Jobs that wait for another job become scheduled when their wait ends. A time that has passed
-- means now: the maintenance task that promotes scheduled jobs is notified at once.
CREATE OR REPLACE FUNCTION howdah.set_start(ids bigint[], of_state howdah.job_state, of_type integer, start_us bigint)
RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    start_at timestamptz := greatest(to_timestamp(start_us / 1000000.0), now());
    step bigint := howdah.rank_step(of_type);
    start_rank bigint := greatest(start_us, now_us);
    is_later boolean := start_us > now_us;
    scheduled bigint := 0;
    limit_keys text[];
BEGIN
    IF of_state = 'scheduled' THEN
        UPDATE howdah.scheduled SET run_at = start_at, rank = priority * step + start_rank,
               options = howdah.with_step(nullif(options - 'start_us', '{}'), priority, step)
        WHERE id = ANY (ids);
        GET DIAGNOSTICS scheduled = ROW_COUNT;
    ELSIF of_state = 'waiting' THEN
        UPDATE howdah.waiting SET rank = priority * step + start_rank,
               options = howdah.with_step(CASE WHEN is_later THEN coalesce(options, '{}') || jsonb_build_object('start_us', start_us)
                                               ELSE nullif(options - 'start_us', '{}') END, priority, step)
        WHERE id = ANY (ids) AND limit_key IS NULL;
    END IF;
    IF of_state IN ('ready', 'waiting') AND is_later THEN
        WITH from_ready AS (DELETE FROM howdah.ready WHERE of_state = 'ready' AND id = ANY (ids) RETURNING *),
        from_waiting AS (DELETE FROM howdah.waiting WHERE of_state = 'waiting' AND id = ANY (ids) AND limit_key IS NOT NULL RETURNING *),
        deleted AS (
            SELECT id, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options, failures, payload
            FROM from_ready
            UNION ALL SELECT id, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options, failures, payload
            FROM from_waiting
        ),
        put AS (
            INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, type_id, attempt, max_attempts, priority, key,
                                          headers, options, failures, payload)
            SELECT d.id, d.priority * step + start_rank, d.created, d.timeout_ms, d.last_token, start_at, d.type_id, d.attempt,
                   d.max_attempts, d.priority, d.key, d.headers,
                   -- The job gets its rank among the fair keys when it becomes ready, like a job that was enqueued with a start
                   -- time.
                   howdah.with_step(nullif(CASE WHEN d.options ? 'fair_key' THEN d.options || '{"coordinated": true}' ELSE d.options END
                                           - 'start_us', '{}'), d.priority, step),
                   d.failures, d.payload
            FROM deleted d RETURNING id
        )
        SELECT (SELECT count(*) FROM put), (SELECT array_agg(r.options ->> 'limit_key') FROM from_ready r WHERE r.options -> 'limit_key' IS NOT NULL)
        INTO scheduled, limit_keys;
    END IF;
    IF scheduled > 0 THEN
        RETURN NEXT ROW('scheduled', NULL, NULL, scheduled, start_rank - now_us)::howdah.wakeup;
    END IF;
    -- Limit keys whose slots the jobs gave up. Other jobs may take these slots.
    IF limit_keys IS NOT NULL AND howdah.recheck_limits(array_fill(of_type, ARRAY[cardinality(limit_keys)]), limit_keys) THEN
        RETURN NEXT ROW('limit', NULL, NULL, NULL, NULL)::howdah.wakeup;
    END IF;
END $$;

-- Sets fields of jobs of one type and state. Returns wake-ups and results of single jobs, like howdah.move_jobs.
CREATE OR REPLACE FUNCTION howdah.set_in_jobs(ids bigint[], of_state howdah.job_state, of_type integer, wanted jsonb)
RETURNS TABLE (kind howdah.wakeup_kind, id bigint, type_id integer, rank bigint, jobs bigint, in_us bigint, problem text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    locked howdah.locked_job[];
    able bigint[];
    new_timeout bigint := (wanted ->> 'timeout_ms')::bigint;
BEGIN
    locked := ARRAY(SELECT l FROM howdah.lock_in_state(ids, of_state, of_type) l WHERE howdah.would_change(wanted, of_state, l));
    able := ARRAY(SELECT l.id FROM unnest(locked) l WHERE howdah.why_not_set(wanted, l) IS NULL ORDER BY l.id);
    IF wanted ?| '{max_attempts,timeout_ms,add_tags,remove_tags}' THEN
        WITH in_ready AS (
            UPDATE howdah.ready SET max_attempts = howdah.attempts_to_set(wanted, of_state, attempt, max_attempts),
                   timeout_ms = coalesce(new_timeout, timeout_ms), options = howdah.options_to_set(wanted, options)
            WHERE of_state = 'ready' AND id = ANY (able)
        ),
        in_leased AS (
            UPDATE howdah.leased SET max_attempts = howdah.attempts_to_set(wanted, of_state, attempt, max_attempts),
                   timeout_ms = coalesce(new_timeout, timeout_ms), options = howdah.options_to_set(wanted, options)
            WHERE of_state = 'leased' AND id = ANY (able)
        ),
        in_scheduled AS (
            UPDATE howdah.scheduled SET max_attempts = howdah.attempts_to_set(wanted, of_state, attempt, max_attempts),
                   timeout_ms = coalesce(new_timeout, timeout_ms), options = howdah.options_to_set(wanted, options)
            WHERE of_state = 'scheduled' AND id = ANY (able)
        ),
        in_waiting AS (
            UPDATE howdah.waiting SET max_attempts = howdah.attempts_to_set(wanted, of_state, attempt, max_attempts),
                   timeout_ms = coalesce(new_timeout, timeout_ms), options = howdah.options_to_set(wanted, options)
            WHERE of_state = 'waiting' AND id = ANY (able)
        )
        UPDATE howdah.dead SET max_attempts = howdah.attempts_to_set(wanted, of_state, attempt, max_attempts),
               timeout_ms = coalesce(new_timeout, timeout_ms), options = howdah.options_to_set(wanted, options)
        WHERE of_state = 'dead' AND id = ANY (able);
        PERFORM howdah.index_tags(a.id, of_type, jsonb_build_object('tags', wanted -> 'add_tags')) FROM unnest(able) AS a(id)
        WHERE wanted ? 'add_tags';
    END IF;
    IF howdah.start_to_set(wanted) IS NOT NULL THEN
        RETURN QUERY SELECT w.kind, NULL::bigint, w.type_id, w.rank, w.jobs, w.in_us, NULL::text
                     FROM howdah.set_start(able, of_state, of_type, howdah.start_to_set(wanted)) w;
    END IF;
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, l.id, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, howdah.why_not_set(wanted, l)
                 FROM unnest(locked) l;
END $$;
