-- Who may run next at each limit key that is due to be looked at: moves jobs from waiting to ready, in the
-- order of their ranks. Whoever looks holds the gate's row, so that two do not grant the same slot; whoever
-- ends or adds a job touches the row after it, so that a gate is always looked at once more.
-- A rate is a token bucket. Jobs that are ready and have not begun keep their tokens out of it, so that not
-- more than a burst can begin at once when workers come. $1 gates at most
CREATE FUNCTION howdah.admit(at_most integer) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    g howdah.limit_gate;
    t howdah.task_type;
    ready_jobs bigint;
    other_jobs bigint;
    last_lease timestamptz;
    free bigint;
    look timestamptz;
    jobs bigint;
    lowest bigint;
    filled double precision;
    is_last boolean;
BEGIN
    FOR g IN
        SELECT * FROM howdah.limit_gate WHERE check_at <= now() ORDER BY check_at LIMIT at_most FOR UPDATE SKIP LOCKED
    LOOP
        SELECT * INTO t FROM howdah.task_type WHERE id = g.type_id;
        SELECT count(*) INTO ready_jobs FROM howdah.ready r
        WHERE r.type_id = g.type_id AND r.options ->> 'limit_key' = g.limit_key AND r.options -> 'limit_key' IS NOT NULL;
        SELECT count(*), max(l.leased_at) INTO other_jobs, last_lease FROM howdah.leased l
        WHERE l.type_id = g.type_id AND l.options ->> 'limit_key' = g.limit_key AND l.options -> 'limit_key' IS NOT NULL;
        IF t.key_strict THEN
            other_jobs := other_jobs + (
                SELECT count(*) FROM howdah.scheduled s
                WHERE s.type_id = g.type_id AND s.options ->> 'limit_key' = g.limit_key
                  AND s.options -> 'limit_key' IS NOT NULL AND s.attempt > 0);
        END IF;
        -- One round grants 1,000 at most; the rest comes with the next.
        free := least(coalesce(t.key_max_running - ready_jobs - other_jobs, 1000), 1000);
        look := CASE WHEN coalesce(t.key_max_running - ready_jobs - other_jobs, 1001) > 1000 THEN now() END;
        g.last_start := greatest(g.last_start, last_lease);
        IF t.key_min_gap_ms IS NOT NULL THEN
            -- One at a time: the pause is counted from when it begins.
            look := greatest(g.last_start, CASE WHEN ready_jobs > 0 THEN now() END)
                    + t.key_min_gap_ms * interval '1 millisecond';
            free := least(free, CASE WHEN ready_jobs > 0 OR look > now() THEN 0 ELSE 1 END);
            look := coalesce(CASE WHEN look > now() THEN look END, now() + t.key_min_gap_ms * interval '1 millisecond');
        END IF;
        IF t.key_rate_per_s IS NOT NULL THEN
            filled := least(greatest(t.key_rate_burst - ready_jobs, 0),
                            coalesce(g.tokens + extract(epoch FROM now() - g.refilled)::double precision * t.key_rate_per_s,
                                     t.key_rate_burst));
            free := least(free, floor(filled)::bigint);
            IF free >= floor(filled)::bigint THEN
                look := greatest(look, now() + (1 - (filled - floor(filled))) / t.key_rate_per_s * interval '1 second');
            END IF;
        END IF;
        IF t.key_max_running <= ready_jobs + other_jobs THEN
            -- The end of one of them says when.
            look := NULL;
        END IF;
        IF g.paused_until > now() THEN
            free := 0;
            look := CASE WHEN isfinite(g.paused_until) THEN g.paused_until END;
        END IF;

        WITH next AS (
            SELECT w.ctid FROM howdah.waiting w
            WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key
            ORDER BY w.rank, w.id LIMIT greatest(free, 0) FOR UPDATE SKIP LOCKED
        ),
        gone AS (DELETE FROM howdah.waiting WHERE ctid = ANY (ARRAY(SELECT ctid FROM next)) RETURNING *),
        admitted AS (
            INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                      key, headers, options, failures, payload)
            SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
                   options, failures, payload
            FROM gone RETURNING rank
        )
        SELECT count(*), min(rank) INTO jobs, lowest FROM admitted;
        IF jobs > 0 THEN
            RETURN NEXT ROW(1::smallint, g.type_id, lowest, jobs)::howdah.woken;
        END IF;
        is_last := NOT EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key);
        UPDATE howdah.limit_gate SET
            check_at = CASE WHEN is_last THEN NULL ELSE look END,
            -- What was let in begins now at the earliest; when it did, its lease and its ack say.
            last_start = CASE WHEN jobs > 0 AND t.key_min_gap_ms IS NOT NULL THEN greatest(g.last_start, now())
                              ELSE g.last_start END,
            tokens = CASE WHEN t.key_rate_per_s IS NOT NULL THEN filled - jobs END,
            refilled = now()
        WHERE type_id = g.type_id AND limit_key = g.limit_key;
    END LOOP;
    RETURN QUERY
    SELECT 4::smallint, NULL::integer, (extract(epoch FROM n.check_at - now()) * 1000000)::bigint, 0::bigint
    FROM (SELECT l.check_at FROM howdah.limit_gate l WHERE l.check_at IS NOT NULL ORDER BY l.check_at LIMIT 1) n;
END $$;

-- A type's limits have changed: what became ready without them waits now, and all of its gates are looked at.
CREATE FUNCTION howdah.limits_changed(changed integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE howdah.leased SET limited = true
    WHERE type_id = changed AND limited IS NULL
      AND EXISTS (SELECT FROM howdah.task_type WHERE id = changed AND (max_running IS NOT NULL OR rate_per_s IS NOT NULL));
    WITH gone AS (
        DELETE FROM howdah.ready r WHERE r.type_id = changed AND r.options -> 'limit_key' IS NOT NULL
          AND howdah.is_limited(changed, r.options ->> 'limit_key', false)
        RETURNING *
    ),
    kept AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
               options ->> 'limit_key', headers, options, failures, payload
        FROM gone RETURNING limit_key
    )
    INSERT INTO howdah.limit_gate (type_id, limit_key, check_at)
    SELECT DISTINCT changed, limit_key, now() FROM kept ORDER BY 2
    ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET check_at = now();
    UPDATE howdah.limit_gate SET check_at = now() WHERE type_id = changed AND limit_key <> '';
END $$;

-- Pauses a limit key until a time ('infinity' until it is resumed), or with null resumes it.
CREATE FUNCTION howdah.pause_limit_key(of_type integer, of_key text, until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.limit_gate (type_id, limit_key, check_at, paused_until) VALUES (of_type, of_key, now(), until)
    ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET check_at = now(), paused_until = excluded.paused_until;
    WITH gone AS (
        DELETE FROM howdah.ready r WHERE r.type_id = of_type AND r.options ->> 'limit_key' = of_key
          AND r.options -> 'limit_key' IS NOT NULL AND until > now()
        RETURNING *
    )
    INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                key, limit_key, headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, of_key, headers,
           options, failures, payload
    FROM gone;
END $$;

-- How many jobs of types with limits may be claimed now, of those wanted, and when to ask again (ms) if it is
-- for time alone. Called before the claim, in its transaction: the row is held until that ends.
CREATE FUNCTION howdah.type_quota(type_ids integer[], wanted integer[])
RETURNS TABLE (type_id integer, allowed integer, retry_in_ms bigint) LANGUAGE plpgsql AS $$
DECLARE
    w record;
    g howdah.limit_gate;
    filled double precision;
BEGIN
    FOR w IN
        SELECT t.id, u.wanted, t.max_running, t.rate_per_s, t.rate_burst
        FROM unnest(type_ids, wanted) AS u(id, wanted) JOIN howdah.task_type t ON t.id = u.id ORDER BY t.id
    LOOP
        INSERT INTO howdah.limit_gate AS l (type_id, limit_key) VALUES (w.id, '')
        ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET limit_key = '' RETURNING l.* INTO g;
        type_id := w.id;
        allowed := w.wanted;
        retry_in_ms := NULL;
        IF w.max_running IS NOT NULL THEN
            allowed := least(allowed, w.max_running - (
                SELECT count(*) FROM howdah.leased l WHERE l.type_id = w.id AND l.limited)::integer);
        END IF;
        IF w.rate_per_s IS NOT NULL THEN
            filled := least(w.rate_burst, coalesce(
                g.tokens + extract(epoch FROM now() - g.refilled)::double precision * w.rate_per_s, w.rate_burst));
            UPDATE howdah.limit_gate l SET tokens = filled, refilled = now() WHERE l.type_id = w.id AND l.limit_key = '';
            IF allowed > floor(filled)::integer THEN
                allowed := floor(filled)::integer;
                retry_in_ms := ceil((1 - (filled - floor(filled))) / w.rate_per_s * 1000)::bigint;
            END IF;
        END IF;
        allowed := greatest(allowed, 0);
        RETURN NEXT;
    END LOOP;
END $$;

-- The limits of a type, those that are set.
CREATE FUNCTION howdah.limits_of(t howdah.task_type) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'max_running', t.max_running, 'rate_per_s', t.rate_per_s, 'rate_burst', t.rate_burst,
        'key_max_running', t.key_max_running, 'key_strict', t.key_strict, 'key_min_gap_ms', t.key_min_gap_ms,
        'key_rate_per_s', t.key_rate_per_s, 'key_rate_burst', t.key_rate_burst))
$$;

-- What a person is told of a special job; null: it is none. Types by their names, at most 100 of each list.
CREATE FUNCTION howdah.special_view(job_id bigint, options jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object(
        'limit_key', options -> 'limit_key', 'fair_key', options -> 'fair_key', 'expire_us', options -> 'expire_us',
        'parent', options -> 'parent',
        'next_stages', (
            SELECT jsonb_agg(t.name ORDER BY s.n)
            FROM jsonb_array_elements_text(options -> 'stages') WITH ORDINALITY AS s(id, n)
            JOIN howdah.task_type t ON t.id = s.id::integer),
        'stages_done', (
            SELECT jsonb_agg(d.stage || jsonb_build_object('task_type', t.name) ORDER BY d.n)
            FROM jsonb_array_elements(options -> 'stages_done') WITH ORDINALITY AS d(stage, n)
            JOIN howdah.task_type t ON t.id = (d.stage ->> 'type')::integer),
        'after', (
            SELECT jsonb_agg(d.after_id ORDER BY d.after_id)
            FROM (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = special_view.job_id LIMIT 100) d)
    )), '{}')
$$;
