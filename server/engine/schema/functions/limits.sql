-- Limits of limit keys: how many jobs of a key may be ready or leased, and when the next may start.

-- Returns whether jobs of a limit key must wait until howdah.admit makes them ready. With key_strict, retries keep their slot
-- but must wait too, because a gap, a rate or a lower limit may have been set since their first attempt. howdah.admit makes
-- them ready first.
CREATE OR REPLACE FUNCTION howdah.is_limited(type_id integer, limit_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM howdah.task_type t WHERE t.id = $1
                   AND (t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL))
        OR EXISTS (SELECT FROM howdah.limit_state g WHERE g.type_id = $1 AND g.limit_key = $2
                   AND (g.paused_until > now() OR g.max_running IS NOT NULL));
END $$;

-- Returns the settings of a type as they apply to one of its limit keys: the own limit of the key replaces key_max_running, and a
-- gap from the end of a job means that one job runs at a time.
CREATE OR REPLACE FUNCTION howdah.limits_of_key(of_type integer, of_key text) RETURNS howdah.task_type LANGUAGE plpgsql STABLE AS $$
DECLARE
    t howdah.task_type;
    own integer := (SELECT g.max_running FROM howdah.limit_state g WHERE g.type_id = of_type AND g.limit_key = of_key);
BEGIN
    SELECT * INTO t FROM howdah.task_type o WHERE o.id = of_type;
    t.key_max_running := CASE WHEN t.key_gap_from_end THEN 1 ELSE coalesce(own, t.key_max_running) END;
    RETURN t;
END $$;

-- Returns the seconds since a stored time, for token buckets; never negative. A negative number, after the clock has gone back,
-- would take tokens from a bucket, and no job would start until the clock had caught up.
CREATE OR REPLACE FUNCTION howdah.elapsed_s(since timestamptz) RETURNS double precision LANGUAGE sql STABLE
    RETURN greatest(extract(epoch FROM now() - since)::double precision, 0);

-- Returns the option limit_max of a job; null: none. options may be malformed, because roles with SQL access may have written
-- them.
CREATE OR REPLACE FUNCTION howdah.limit_max_of(options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'limit_max') = 'number'
                THEN least(greatest((options -> 'limit_max')::numeric, 1), 1000000)::integer END
$$;

-- Returns how many jobs of its limit key may run when a job starts, itself included; null: any number. t:
-- limits_of_key.
CREATE OR REPLACE FUNCTION howdah.limit_of_job(t howdah.task_type, options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN t.key_gap_from_end THEN 1 ELSE coalesce(howdah.limit_max_of(options), t.key_max_running) END
$$;

-- Returns the number of ready jobs of a limit key, and the lowest of their limits (limit_of_job; null: no limit). t:
-- limits_of_key. Stops counting above all limits and `at_least`, because a higher number makes no difference.
CREATE OR REPLACE FUNCTION howdah.ready_of_key(t howdah.task_type, of_key text, at_least integer, OUT jobs bigint, OUT most integer)
LANGUAGE sql STABLE AS $$
    SELECT count(*), min(n.most) FROM (
        SELECT howdah.limit_of_job(t, r.options) AS most FROM howdah.ready r
        WHERE r.type_id = t.id AND r.options ->> 'limit_key' = of_key COLLATE "C" AND r.options -> 'limit_key' IS NOT NULL
        LIMIT greatest(t.key_max_running, t.key_rate_burst, at_least, 1) + 1) n
$$;

-- Returns the number of started jobs of a limit key: leased jobs, and with key_strict also jobs that are scheduled for a retry.
CREATE OR REPLACE FUNCTION howdah.started_of_key(t howdah.task_type, of_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (SELECT count(*) FROM howdah.leased l
            WHERE l.type_id = t.id AND l.options ->> 'limit_key' = of_key COLLATE "C" AND l.options -> 'limit_key' IS NOT NULL)
         + CASE WHEN t.key_strict THEN (
               SELECT count(*) FROM howdah.scheduled s
               WHERE s.type_id = t.id AND s.options ->> 'limit_key' = of_key COLLATE "C" AND s.options -> 'limit_key' IS NOT NULL
                 AND s.attempt > 0) ELSE 0 END
$$;

-- Returns whether more jobs of a limit key are ready than the current limits allow.
CREATE OR REPLACE FUNCTION howdah.exceeds_limits(t howdah.task_type, of_key text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT r.jobs > 0 AND (
        r.jobs > least(CASE WHEN t.key_min_gap_ms IS NOT NULL THEN 1 END, t.key_rate_burst, r.most)
        OR CASE WHEN r.most IS NULL THEN false ELSE r.jobs + howdah.started_of_key(t, of_key) > r.most END)
    FROM howdah.ready_of_key(t, of_key, 1000) r
$$;

-- Returns the time from which the minimum gap of a limit key counts after an attempt that ends now.
CREATE OR REPLACE FUNCTION howdah.gap_start(t howdah.task_type, attempt_start timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN t.key_gap_from_end THEN now() ELSE attempt_start END
$$;

-- Schedules a check of limit keys whose slots jobs have given up. attempt_starts: for each job, the start of the attempt that has
-- ended, null if none has. The minimum gap counts from it, even if the job ended before its key was checked. Returns false if no
-- job waits for any of these keys.
CREATE OR REPLACE FUNCTION howdah.recheck_limits(type_ids integer[], limit_keys text[], attempt_starts timestamptz[] DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    have_states boolean;
BEGIN
    PERFORM FROM (SELECT DISTINCT u.type_id, u.limit_key COLLATE "C" AS limit_key FROM unnest(type_ids, limit_keys) AS u(type_id, limit_key)
                  ORDER BY 1, 2) u
    CROSS JOIN LATERAL (SELECT FROM howdah.limit_state g WHERE g.type_id = u.type_id AND g.limit_key = u.limit_key FOR UPDATE) g;
    have_states := FOUND;
    IF have_states THEN
        UPDATE howdah.limit_state SET check_at = now() WHERE ctid = ANY (ARRAY(
            SELECT g.ctid FROM unnest(type_ids, limit_keys) AS u(type_id, limit_key)
            CROSS JOIN LATERAL (SELECT g.ctid FROM howdah.limit_state g
                                WHERE g.type_id = u.type_id AND g.limit_key = u.limit_key OFFSET 0) g));
    END IF;
    INSERT INTO howdah.limit_state AS g (type_id, limit_key, gap_from)
    SELECT u.type_id, u.limit_key COLLATE "C", max(howdah.gap_start(t, u.attempt_start))
    FROM unnest(type_ids, limit_keys, attempt_starts) AS u(type_id, limit_key, attempt_start)
    JOIN howdah.task_type t ON t.id = u.type_id AND t.key_min_gap_ms IS NOT NULL
    WHERE u.attempt_start IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET gap_from = greatest(g.gap_from, excluded.gap_from);
    RETURN have_states;
END $$;

-- Moves jobs whose leases ended without an ack from ready to waiting, if they must wait for their limit key. Stores the time
-- from which the minimum gap counts after the ended attempts. Runs in the transaction that ended the leases, after after_end.
-- The caller passes options without limit keys to after_end, because limit states are locked last and all at once. Returns a
-- null row if limit keys must be checked, and the id of each job that waits now.
CREATE OR REPLACE FUNCTION howdah.requeue_for_limit(ids bigint[], type_ids integer[], options jsonb[], leased_at timestamptz[])
RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    -- Lock all limit states in the order of their keys, and create missing ones. So a concurrent pause of a key either waits
    -- for this transaction or is visible here.
    INSERT INTO howdah.limit_state AS g (type_id, limit_key, check_at, gap_from)
    SELECT e.type_id, e.limit_key, now(), max(CASE WHEN t.key_min_gap_ms IS NOT NULL THEN howdah.gap_start(t, e.leased_at) END)
    FROM unnest(type_ids, (SELECT array_agg(o ->> 'limit_key' ORDER BY n) FROM unnest(options) WITH ORDINALITY AS u(o, n)),
                leased_at) AS e(type_id, limit_key, leased_at)
    JOIN howdah.task_type t ON t.id = e.type_id
    WHERE e.limit_key IS NOT NULL AND (
        t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL
        OR EXISTS (SELECT FROM howdah.limit_state o WHERE o.type_id = e.type_id AND o.limit_key = e.limit_key OFFSET 0))
    GROUP BY e.type_id, e.limit_key ORDER BY e.type_id, e.limit_key COLLATE "C"
    ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE
    SET check_at = now(), gap_from = greatest(g.gap_from, excluded.gap_from);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN NEXT NULL;
    RETURN QUERY
    -- Looks up jobs by id alone and filters by limit key afterwards: otherwise the planner may read all of ready_by_limit_key.
    -- ORDER BY makes the planner use ready_by_id: without it, Postgres 18 may scan all of ready_pkey, because the two plans
    -- cost the same while ready is empty.
    WITH of_keys AS MATERIALIZED (
        SELECT r.ctid, r.type_id, r.options ->> 'limit_key' AS limit_key
        FROM (SELECT r.ctid, r.type_id, r.options FROM howdah.ready r WHERE r.id = ANY (ids) ORDER BY r.id OFFSET 0) r
        WHERE r.options -> 'limit_key' IS NOT NULL
    ),
    held AS MATERIALIZED (
        SELECT k.type_id, k.limit_key
        FROM (SELECT DISTINCT o.type_id, o.limit_key FROM of_keys o) k
        CROSS JOIN LATERAL howdah.limits_of_key(k.type_id, k.limit_key) t
        WHERE t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL OR howdah.exceeds_limits(t, k.limit_key)
           OR EXISTS (SELECT FROM howdah.limit_state g
                      WHERE g.type_id = k.type_id AND g.limit_key = k.limit_key AND g.paused_until > now() OFFSET 0)
    ),
    deleted AS (
        DELETE FROM howdah.ready WHERE ctid = ANY (ARRAY(
            SELECT o.ctid FROM of_keys o WHERE (o.type_id, o.limit_key) IN (SELECT h.type_id, h.limit_key FROM held h)))
        RETURNING *
    ),
    kept AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT j.id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
               j.options ->> 'limit_key', headers, j.options, failures, payload
        FROM deleted j RETURNING id
    )
    SELECT k.id FROM kept k;
END $$;

-- Makes the first waiting jobs of a limit key ready, at most `free` of them. Returns their number and lowest rank. With
-- key_strict, jobs that have started before go first. The other jobs follow in the order of their limits, the largest first,
-- and then of their ranks. A job becomes ready only if the number of jobs that hold a slot (used), with this job and those
-- before it, exceeds neither the job's own limit, nor a limit of the jobs before it, nor the lowest limit of the ready jobs
-- (ready_most). So a ready job also holds up jobs with a larger limit, which are checked again when a job of the key ends or
-- arrives. own_most: the largest limit_max of the waiting jobs. t: limits_of_key.
CREATE OR REPLACE FUNCTION howdah.admit_jobs(t howdah.task_type, of_key text, used bigint, ready_most integer, own_most integer,
                                             free bigint, OUT jobs bigint, OUT lowest bigint) LANGUAGE plpgsql AS $$
DECLARE
    no_limit CONSTANT integer := 2147483647;
    of_key_most integer := coalesce(t.key_max_running, no_limit);
BEGIN
    WITH first AS MATERIALIZED (
        SELECT w.ctid, 0 AS most, w.rank, w.id, w.options FROM howdah.waiting w
        WHERE t.key_strict AND w.type_id = t.id AND w.limit_key = of_key AND w.limit_key IS NOT NULL AND w.attempt > 0
        ORDER BY w.rank, w.id LIMIT greatest(least(free, greatest(own_most, of_key_most) - used), 0) FOR UPDATE SKIP LOCKED
    ),
    own AS MATERIALIZED (
        SELECT w.ctid, howdah.limit_max_of(w.options) AS most, w.rank, w.id, w.options FROM howdah.waiting w
        WHERE w.type_id = t.id AND w.limit_key = of_key AND w.options -> 'limit_max' IS NOT NULL
          AND (t.key_strict IS NOT TRUE OR w.attempt = 0)
        ORDER BY w.options -> 'limit_max' DESC NULLS LAST, w.rank, w.id
        LIMIT greatest(least(free, own_most - used), 0) FOR UPDATE SKIP LOCKED
    ),
    usual AS MATERIALIZED (
        SELECT w.ctid, of_key_most AS most, w.rank, w.id, w.options FROM howdah.waiting w
        WHERE w.type_id = t.id AND w.limit_key = of_key AND w.options -> 'limit_max' IS NULL
          AND (t.key_strict IS NOT TRUE OR w.attempt = 0)
        ORDER BY w.options -> 'limit_max' DESC NULLS LAST, w.rank, w.id
        LIMIT greatest(least(free, of_key_most - used), 0) FOR UPDATE SKIP LOCKED
    ),
    queue AS (
        SELECT q.ctid, row_number() OVER turn AS n, min(howdah.limit_of_job(t, q.options)) OVER turn AS most
        FROM (SELECT true AS is_first, f.* FROM first f
              UNION ALL SELECT false, o.* FROM own o UNION ALL SELECT false, u.* FROM usual u) q
        WINDOW turn AS (ORDER BY q.is_first DESC, q.most DESC, q.rank, q.id ROWS UNBOUNDED PRECEDING)
    ),
    deleted AS (
        DELETE FROM howdah.waiting WHERE ctid = ANY (ARRAY(
            SELECT q.ctid FROM queue q
            WHERE q.n <= free AND used + q.n <= coalesce(least(q.most, ready_most), no_limit)))
        RETURNING *
    ),
    admitted AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                  key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
               options, failures, payload
        FROM deleted RETURNING rank
    )
    SELECT count(*), min(a.rank) INTO jobs, lowest FROM admitted a;
END $$;

-- Grants slots at each limit key that is due for a check, by moving jobs from waiting to ready (howdah.admit_jobs). The row of
-- limit_state is locked, so that two brokers do not grant the same slot. A transaction that ends or adds a job sets
-- check_at in this row as its last step, so the key is checked again after the change. at_most limits the keys of one call. A
-- rate is a token bucket. A ready job holds a token, so that at most a burst of jobs can start at once when workers connect. A
-- key whose ready jobs are being moved to waiting (limit_changes.sql) grants nothing. If more jobs are ready than the limit of
-- the key allows, they wait again.
CREATE OR REPLACE FUNCTION howdah.admit(at_most integer) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    g howdah.limit_state;
    t howdah.task_type;
    ready_jobs bigint;
    ready_most integer;
    own_most integer;
    used bigint;
    last_lease timestamptz;
    moved bigint;
    free bigint;
    next_check timestamptz;
    jobs bigint;
    lowest bigint;
    filled double precision;
    is_last boolean;
BEGIN
    FOR g IN
        SELECT * FROM howdah.limit_state WHERE check_at <= now() ORDER BY check_at LIMIT at_most FOR UPDATE SKIP LOCKED
    LOOP
        t := howdah.limits_of_key(g.type_id, g.limit_key);
        own_most := (
            SELECT howdah.limit_max_of(w.options) FROM howdah.waiting w
            WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key AND w.options -> 'limit_max' IS NOT NULL
            ORDER BY w.options -> 'limit_max' DESC NULLS LAST, w.rank, w.id LIMIT 1);
        SELECT r.jobs, r.most INTO ready_jobs, ready_most FROM howdah.ready_of_key(t, g.limit_key, own_most) r;
        used := ready_jobs + howdah.started_of_key(t, g.limit_key);
        moved := 0;
        IF ready_jobs > 0 AND used > ready_most THEN
            -- The limit was lowered. All ready jobs of the key move to waiting, and the first ones become ready again below.
            moved := howdah.move_to_waiting(g.type_id, g.limit_key, 500);
            SELECT r.jobs, r.most INTO ready_jobs, ready_most FROM howdah.ready_of_key(t, g.limit_key, own_most) r;
            used := ready_jobs + howdah.started_of_key(t, g.limit_key);
        END IF;
        -- One check grants at most 1,000 slots; the next check grants the rest.
        free := 1000;
        next_check := CASE WHEN t.key_max_running IS NULL AND own_most IS NULL THEN now() END;
        IF t.key_min_gap_ms IS NOT NULL THEN
            IF t.key_gap_from_end IS NOT TRUE THEN
                SELECT max(l.leased_at) INTO last_lease FROM howdah.leased l
                WHERE l.type_id = g.type_id AND l.options ->> 'limit_key' = g.limit_key AND l.options -> 'limit_key' IS NOT NULL;
                g.gap_from := greatest(g.gap_from, last_lease);
            END IF;
            -- A time in the future means that the clock went back. Up to a second is normal, because a lease may be younger
            -- than this transaction.
            IF g.gap_from > now() + interval '1 second' THEN
                g.gap_from := now();
            END IF;
            -- With a minimum gap, only one job is ready at a time, because the gap counts from the start or the end of its attempt.
            next_check := greatest(g.gap_from, CASE WHEN ready_jobs > 0 THEN now() END)
                    + t.key_min_gap_ms * interval '1 millisecond';
            free := least(free, CASE WHEN ready_jobs > 0 OR next_check > now() THEN 0 ELSE 1 END);
            next_check := coalesce(CASE WHEN next_check > now() THEN next_check END, now() + t.key_min_gap_ms * interval '1 millisecond');
        END IF;
        IF t.key_rate_per_s IS NOT NULL THEN
            filled := least(greatest(t.key_rate_burst - ready_jobs, 0),
                            coalesce(g.tokens + howdah.elapsed_s(g.refilled) * t.key_rate_per_s,
                                     t.key_rate_burst));
            free := least(free, floor(filled)::bigint);
            IF free >= floor(filled)::bigint THEN
                next_check := greatest(next_check, now() + least((1 - (filled - floor(filled))) / t.key_rate_per_s, 86400) * interval '1 second');
            END IF;
        END IF;
        IF greatest(coalesce(t.key_max_running, used + 1), own_most) <= used OR t.key_gap_from_end AND used > 0 THEN
            -- The end of one of the jobs triggers the next check, unless more ready jobs are to be moved.
            next_check := CASE WHEN moved = 500 THEN now() END;
        END IF;
        IF g.paused_until > now() THEN
            free := 0;
            next_check := CASE WHEN isfinite(g.paused_until) THEN g.paused_until END;
        END IF;
        IF EXISTS (SELECT FROM howdah.limit_change c WHERE c.type_id = g.type_id AND c.moving = g.limit_key) THEN
            -- A step of limit_changes.sql still moves jobs of this key to waiting, maybe also the job that must run first. Its
            -- last step schedules the next check.
            free := 0;
            next_check := NULL;
        END IF;

        SELECT a.jobs, a.lowest INTO jobs, lowest FROM howdah.admit_jobs(t, g.limit_key, used, ready_most, own_most, free) a;
        IF jobs = 1000 THEN
            next_check := now();
        END IF;
        IF jobs > 0 THEN
            RETURN NEXT ROW('ready', g.type_id, lowest, jobs, NULL)::howdah.wakeup;
        END IF;
        is_last := NOT EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key);
        UPDATE howdah.limit_state SET
            check_at = CASE WHEN is_last THEN NULL ELSE next_check END,
            -- An admitted job starts now at the earliest. Later checks correct this by the lease and by the end of the attempt.
            gap_from = CASE WHEN jobs > 0 AND t.key_min_gap_ms IS NOT NULL AND t.key_gap_from_end IS NOT TRUE
                            THEN greatest(g.gap_from, now()) ELSE g.gap_from END,
            tokens = CASE WHEN t.key_rate_per_s IS NOT NULL THEN filled - jobs END,
            refilled = now()
        WHERE type_id = g.type_id AND limit_key = g.limit_key;
    END LOOP;
    RETURN QUERY
    SELECT 'limit_later'::howdah.wakeup_kind, NULL::integer, NULL::bigint, NULL::bigint, (extract(epoch FROM n.check_at - now()) * 1000000)::bigint
    FROM (SELECT l.check_at FROM howdah.limit_state l WHERE l.check_at IS NOT NULL ORDER BY l.check_at LIMIT 1) n;
END $$;
