-- Limits hold whatever becomes of a job on its way, and while they are changed. Acks follow in V16__limits_acks.sql.

-- Those of a key that have begun go first in strict order.
CREATE INDEX waiting_begun ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL AND attempt > 0;

-- A type whose limits were changed, and how far the walks through its keys and leases have come that must follow.
-- Each step is a small transaction that holds the row; whichever broker is there makes the next.
-- walk 0: keys, at once. 1 and 2: leases, when brokers have read the limits. 3: both, when all has ended that was
-- under way.
CREATE TABLE howdah.limit_change (
    type_id   integer PRIMARY KEY,
    changed   timestamptz NOT NULL,
    due_at    timestamptz NOT NULL,
    walk      smallint NOT NULL DEFAULT 0,
    after_id  bigint,                      -- lease; null: leases are done
    after_key text NOT NULL DEFAULT '',
    moving    text                         -- a key whose ready jobs are only in part moved to waiting
);

-- Whether jobs of a limit key wait for their turn. A retry in strict order does so too, since there may be a gap, a
-- rate or a lower limit now; howdah.admit takes it first.
CREATE OR REPLACE FUNCTION howdah.is_limited(type_id integer, limit_key text, is_retry boolean)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.task_type t WHERE t.id = $1
                   AND (t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL))
        OR EXISTS (SELECT FROM howdah.limit_gate g WHERE g.type_id = $1 AND g.limit_key = $2 AND g.paused_until > now())
$$;

-- Jobs of a key that are ready, counted no further than it matters for the type's limits.
CREATE FUNCTION howdah.ready_of_key(t howdah.task_type, of_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM (
        SELECT FROM howdah.ready r
        WHERE r.type_id = t.id AND r.options ->> 'limit_key' = of_key AND r.options -> 'limit_key' IS NOT NULL
        LIMIT greatest(t.key_max_running, t.key_rate_burst, 1) + 1) n
$$;

-- Jobs of a key that have begun: leased, and in strict order those that wait for the time of their next attempt.
CREATE FUNCTION howdah.begun_of_key(t howdah.task_type, of_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (SELECT count(*) FROM howdah.leased l
            WHERE l.type_id = t.id AND l.options ->> 'limit_key' = of_key AND l.options -> 'limit_key' IS NOT NULL)
         + CASE WHEN t.key_strict THEN (
               SELECT count(*) FROM howdah.scheduled s
               WHERE s.type_id = t.id AND s.options ->> 'limit_key' = of_key AND s.options -> 'limit_key' IS NOT NULL
                 AND s.attempt > 0) ELSE 0 END
$$;

-- Whether more jobs of a key are ready than howdah.admit can have let in by the limits of now.
CREATE FUNCTION howdah.is_over(t howdah.task_type, of_key text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT r.jobs > 0 AND (
        r.jobs > least(CASE WHEN t.key_min_gap_ms IS NOT NULL THEN 1 END, t.key_rate_burst, t.key_max_running)
        OR CASE WHEN t.key_max_running IS NULL THEN false
                ELSE r.jobs + howdah.begun_of_key(t, of_key) > t.key_max_running END)
    FROM (SELECT howdah.ready_of_key(t, of_key) AS jobs) r
$$;

-- Leases have ended, and the attempts not as an ack: what of these jobs is ready again may have to wait. The pause
-- after a start is counted from there also when nobody has looked meanwhile. Called in the transaction that ended
-- them, after after_end, which was told of no limit keys: gates are locked last, and all at once. Returns null if
-- gates are to be looked at, and the ids of those that wait now.
CREATE FUNCTION howdah.hold_back(ids bigint[], type_ids integer[], options jsonb[], leased_at timestamptz[])
RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    -- All gates in their order, those that are missing too: who pauses a key waits here or is seen.
    INSERT INTO howdah.limit_gate AS g (type_id, limit_key, check_at, last_start)
    SELECT e.type_id, e.limit_key, now(), CASE WHEN t.key_min_gap_ms IS NOT NULL THEN max(e.leased_at) END
    FROM unnest(type_ids, (SELECT array_agg(o ->> 'limit_key' ORDER BY n) FROM unnest(options) WITH ORDINALITY AS u(o, n)),
                leased_at) AS e(type_id, limit_key, leased_at)
    JOIN howdah.task_type t ON t.id = e.type_id
    WHERE e.limit_key IS NOT NULL AND (
        t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL
        OR EXISTS (SELECT FROM howdah.limit_gate o WHERE o.type_id = e.type_id AND o.limit_key = e.limit_key OFFSET 0))
    GROUP BY e.type_id, e.limit_key, t.key_min_gap_ms ORDER BY 1, 2
    ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE
    SET check_at = now(), last_start = greatest(g.last_start, excluded.last_start);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN NEXT NULL;
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT k.type_id, k.limit_key
        FROM (SELECT DISTINCT r.type_id, r.options ->> 'limit_key' AS limit_key FROM howdah.ready r
              WHERE r.id = ANY (ids) AND r.options -> 'limit_key' IS NOT NULL) k
        JOIN howdah.task_type t ON t.id = k.type_id
        WHERE t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL OR howdah.is_over(t, k.limit_key)
           OR EXISTS (SELECT FROM howdah.limit_gate g
                      WHERE g.type_id = k.type_id AND g.limit_key = k.limit_key AND g.paused_until > now() OFFSET 0)
    ),
    gone AS (
        DELETE FROM howdah.ready r WHERE r.id = ANY (ids) AND r.options -> 'limit_key' IS NOT NULL
          AND (r.type_id, r.options ->> 'limit_key') IN (SELECT h.type_id, h.limit_key FROM held h)
        RETURNING r.*
    ),
    kept AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT j.id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
               j.options ->> 'limit_key', headers, j.options, failures, payload
        FROM gone j RETURNING id
    )
    SELECT k.id FROM kept k;
END $$;

-- As it was, but: in strict order those that have begun go first, since their ranks are of when they came back;
-- ready jobs are counted only as far as it matters; and a key whose ready jobs are being moved grants nothing.
CREATE OR REPLACE FUNCTION howdah.admit(at_most integer) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
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
        ready_jobs := howdah.ready_of_key(t, g.limit_key);
        other_jobs := howdah.begun_of_key(t, g.limit_key);
        -- One round grants 1,000 at most; the rest comes with the next.
        free := least(coalesce(t.key_max_running - ready_jobs - other_jobs, 1000), 1000);
        look := CASE WHEN coalesce(t.key_max_running - ready_jobs - other_jobs, 1001) > 1000 THEN now() END;
        IF t.key_min_gap_ms IS NOT NULL THEN
            SELECT max(l.leased_at) INTO last_lease FROM howdah.leased l
            WHERE l.type_id = g.type_id AND l.options ->> 'limit_key' = g.limit_key AND l.options -> 'limit_key' IS NOT NULL;
            g.last_start := greatest(g.last_start, last_lease);
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
        IF EXISTS (SELECT FROM howdah.limit_change c WHERE c.type_id = g.type_id AND c.moving = g.limit_key) THEN
            -- Its first may not be here yet. Who moves them says when.
            free := 0;
            look := NULL;
        END IF;

        WITH first AS MATERIALIZED (
            SELECT w.ctid FROM howdah.waiting w
            WHERE t.key_strict AND w.type_id = g.type_id AND w.limit_key = g.limit_key AND w.limit_key IS NOT NULL
              AND w.attempt > 0
            ORDER BY w.rank, w.id LIMIT greatest(free, 0) FOR UPDATE SKIP LOCKED
        ),
        next AS MATERIALIZED (
            SELECT w.ctid FROM howdah.waiting w
            WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key AND (t.key_strict IS NOT TRUE OR w.attempt = 0)
            ORDER BY w.rank, w.id LIMIT greatest(free - (SELECT count(*) FROM first), 0) FOR UPDATE SKIP LOCKED
        ),
        gone AS (
            DELETE FROM howdah.waiting
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM first UNION ALL SELECT ctid FROM next)) RETURNING *
        ),
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
            -- What was let in begins now at the earliest; when it did, its lease and its end say.
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

-- Moves ready jobs of a key to waiting; how many.
CREATE FUNCTION howdah.move_behind(of_type integer, of_key text, at_most integer) RETURNS bigint LANGUAGE sql AS $$
    WITH those AS (
        SELECT r.ctid FROM howdah.ready r
        WHERE r.type_id = of_type AND r.options ->> 'limit_key' = of_key AND r.options -> 'limit_key' IS NOT NULL
        LIMIT at_most FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM howdah.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM those)) RETURNING *),
    kept AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, of_key, headers,
               options, failures, payload
        FROM gone RETURNING 1
    )
    SELECT count(*) FROM kept
$$;

-- One step through the keys of a type whose limits have changed, in the order of the keys: where more jobs are ready
-- than may be, all of them wait, and howdah.admit begins anew with the first; where jobs wait, somebody looks. Keys at
-- which nothing waits are left alone, however many there are. Jobs and keys together at most at_most. Returns how far it
-- has come; after_key is null after the last.
CREATE FUNCTION howdah.walk_keys(c howdah.limit_change, at_most integer) RETURNS howdah.limit_change LANGUAGE plpgsql AS $$
DECLARE
    t howdah.task_type;
    k text;
    moved bigint;
    half_moved boolean;
BEGIN
    SELECT * INTO t FROM howdah.task_type WHERE id = c.type_id;
    WHILE at_most > 0 LOOP
        k := coalesce(c.moving, least(
            (SELECT r.options ->> 'limit_key' FROM howdah.ready r
             WHERE r.type_id = c.type_id AND r.options -> 'limit_key' IS NOT NULL AND r.options ->> 'limit_key' > c.after_key
               AND num_nonnulls(t.key_max_running, t.key_min_gap_ms, t.key_rate_per_s) > 0
             ORDER BY r.type_id, r.options ->> 'limit_key' LIMIT 1),
            (SELECT w.limit_key FROM howdah.waiting w
             WHERE w.type_id = c.type_id AND w.limit_key > c.after_key AND w.limit_key IS NOT NULL
             ORDER BY w.type_id, w.limit_key, w.rank, w.id LIMIT 1)));
        IF k IS NULL THEN
            c.after_key := NULL;
            EXIT;
        END IF;
        -- Who grants waits until all of this is told, and what it did before is seen.
        PERFORM FROM howdah.limit_gate g WHERE g.type_id = c.type_id AND g.limit_key = k FOR UPDATE;
        moved := 0;
        half_moved := c.moving IS NOT NULL;
        IF half_moved OR howdah.is_over(t, k) THEN
            moved := howdah.move_behind(c.type_id, k, at_most);
            c.moving := CASE WHEN moved = at_most THEN k END;
        END IF;
        IF c.moving IS NULL THEN
            -- Limits may have changed again while it was half moved: those before it are looked at anew.
            IF NOT half_moved THEN
                c.after_key := k;
            END IF;
            INSERT INTO howdah.limit_gate (type_id, limit_key, check_at)
            SELECT c.type_id, k, now()
            WHERE EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = c.type_id AND w.limit_key = k)
            ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET check_at = now();
        END IF;
        at_most := at_most - 1 - moved;
    END LOOP;
    RETURN c;
END $$;

-- One step through all leases, by id: those of the type that were claimed by brokers which did not know of the limit
-- count too. What somebody settles at this moment is left alone.
CREATE FUNCTION howdah.walk_leases(c howdah.limit_change, at_most integer) RETURNS howdah.limit_change LANGUAGE sql AS $$
    WITH seen AS MATERIALIZED (
        SELECT l.ctid, l.id, l.type_id = c.type_id AND l.limited IS NULL AS is_new
        FROM howdah.leased l WHERE l.id > c.after_id ORDER BY l.id LIMIT at_most
    ),
    free AS MATERIALIZED (
        SELECT l.ctid FROM howdah.leased l WHERE l.ctid = ANY (ARRAY(SELECT s.ctid FROM seen s WHERE s.is_new))
          AND EXISTS (SELECT FROM howdah.task_type t
                      WHERE t.id = c.type_id AND (t.max_running IS NOT NULL OR t.rate_per_s IS NOT NULL))
        FOR UPDATE SKIP LOCKED
    ),
    marked AS (UPDATE howdah.leased SET limited = true WHERE ctid = ANY (ARRAY(SELECT f.ctid FROM free f)))
    SELECT c.type_id, c.changed, c.due_at, c.walk, CASE WHEN count(*) = at_most THEN max(s.id) END, c.after_key, c.moving
    FROM seen s
$$;

-- One step of what follows from changed limits, for one type, whichever is due. Keys and jobs $1 at most, leases ten
-- times as many. Returns when there is more to do (µs; 0: now); null: nothing.
CREATE FUNCTION howdah.follow_limits(at_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    c howdah.limit_change;
    -- When each walk begins, after the change.
    walks CONSTANT interval[] := ARRAY[interval '0', '2 seconds', '10 seconds', '45 seconds'];
    busy_us bigint := 0;
BEGIN
    SELECT * INTO c FROM howdah.limit_change WHERE due_at <= now() ORDER BY due_at, type_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Another broker is at what is due.
        busy_us := 200000;
    ELSE
        IF c.after_id IS NULL THEN
            c := howdah.walk_keys(c, at_most);
        ELSE
            c := howdah.walk_leases(c, at_most * 10);
            IF c.after_id IS NULL AND c.walk < 3 THEN
                c.after_key := NULL;
            END IF;
        END IF;
        IF c.after_key IS NULL AND c.walk = 3 THEN
            DELETE FROM howdah.limit_change WHERE type_id = c.type_id;
        ELSE
            IF c.after_key IS NULL THEN
                c.walk := c.walk + 1;
                c.due_at := c.changed + walks[c.walk + 1];
                c.after_id := -9223372036854775808;
                c.after_key := '';
            END IF;
            UPDATE howdah.limit_change SET due_at = c.due_at, walk = c.walk, after_id = c.after_id, after_key = c.after_key,
                                           moving = c.moving
            WHERE type_id = c.type_id;
        END IF;
    END IF;
    RETURN (SELECT greatest(extract(epoch FROM min(due_at) - now()) * 1000000, busy_us)::bigint FROM howdah.limit_change
            HAVING count(*) > 0);
END $$;

-- A type's limits have changed. The first step is made here, which mostly is all; brokers follow with the others
-- (maintain/limits.rs), so that no number of jobs or keys makes a change too large to be made.
CREATE OR REPLACE FUNCTION howdah.limits_changed(changed integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c howdah.limit_change;
BEGIN
    INSERT INTO howdah.limit_change AS l (type_id, changed, due_at) VALUES (limits_changed.changed, now(), now())
    ON CONFLICT ON CONSTRAINT limit_change_pkey DO UPDATE
    SET changed = now(), due_at = now(), walk = 0, after_id = NULL, after_key = ''
    RETURNING l.* INTO c;
    c := howdah.walk_keys(c, 500);
    UPDATE howdah.limit_change l SET after_key = coalesce(c.after_key, l.after_key), moving = c.moving
    WHERE l.type_id = c.type_id;
END $$;

-- As it was, but: until brokers have read a changed limit, and what they claimed without it is marked, all leases of the
-- type are counted. That takes two seconds, so there is no index for it.
CREATE OR REPLACE FUNCTION howdah.type_quota(type_ids integer[], wanted integer[])
RETURNS TABLE (type_id integer, allowed integer, retry_in_ms bigint) LANGUAGE plpgsql AS $$
DECLARE
    w record;
    g howdah.limit_gate;
    filled double precision;
BEGIN
    FOR w IN
        SELECT t.id, u.wanted, t.max_running, t.rate_per_s, t.rate_burst,
               EXISTS (SELECT FROM howdah.limit_change c WHERE c.type_id = t.id AND c.walk < 2) AS is_new
        FROM unnest(type_ids, wanted) AS u(id, wanted) JOIN howdah.task_type t ON t.id = u.id ORDER BY t.id
    LOOP
        INSERT INTO howdah.limit_gate AS l (type_id, limit_key) VALUES (w.id, '')
        ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET limit_key = '' RETURNING l.* INTO g;
        type_id := w.id;
        allowed := w.wanted;
        retry_in_ms := NULL;
        IF w.max_running IS NOT NULL AND w.is_new THEN
            allowed := least(allowed, w.max_running - (
                SELECT count(*) FROM (SELECT FROM howdah.leased l WHERE l.type_id = w.id LIMIT w.max_running) n)::integer);
        ELSIF w.max_running IS NOT NULL THEN
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
