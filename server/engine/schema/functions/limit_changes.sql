-- Applies changes of the limits of a type in small transactions; pauses limit keys.

-- Moves ready jobs of a limit key to waiting, and returns their number.
CREATE OR REPLACE FUNCTION howdah.move_to_waiting(of_type integer, of_key text, at_most integer) RETURNS bigint LANGUAGE sql AS $$
    WITH those AS (
        SELECT r.ctid FROM howdah.ready r
        WHERE r.type_id = of_type AND r.options ->> 'limit_key' = of_key COLLATE "C" AND r.options -> 'limit_key' IS NOT NULL
        LIMIT at_most FOR UPDATE SKIP LOCKED
    ),
    deleted AS (DELETE FROM howdah.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM those)) RETURNING *),
    kept AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, of_key, headers,
               options, failures, payload
        FROM deleted RETURNING 1
    )
    SELECT count(*) FROM kept
$$;

-- Makes one step through the limit keys of a type whose limits have changed, in the order of the keys. If more jobs of a key
-- are ready than the limits allow, all of them move to waiting, and howdah.admit makes them ready again in order. If jobs of a
-- key wait, a check of the key by howdah.admit is scheduled. at_most limits the number of jobs and keys together. Returns the
-- new position; after_key is null after the last key.
CREATE OR REPLACE FUNCTION howdah.walk_keys(c howdah.limit_change, at_most integer) RETURNS howdah.limit_change LANGUAGE plpgsql AS $$
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
             ORDER BY r.type_id, (r.options ->> 'limit_key') COLLATE "C" LIMIT 1),
            (SELECT w.limit_key FROM howdah.waiting w
             WHERE w.type_id = c.type_id AND w.limit_key > c.after_key AND w.limit_key IS NOT NULL
             ORDER BY w.type_id, w.limit_key LIMIT 1)));
        IF k IS NULL THEN
            c.after_key := NULL;
            EXIT;
        END IF;
        -- The lock keeps howdah.admit from granting slots of this key until this transaction ends. Slots that it granted before
        -- are visible here.
        PERFORM FROM howdah.limit_state g WHERE g.type_id = c.type_id AND g.limit_key = k FOR UPDATE;
        moved := 0;
        half_moved := c.moving IS NOT NULL;
        IF half_moved OR howdah.exceeds_limits(howdah.limits_of_key(c.type_id, k), k) THEN
            moved := howdah.move_to_waiting(c.type_id, k, at_most);
            c.moving := CASE WHEN moved = at_most THEN k END;
        END IF;
        IF c.moving IS NULL THEN
            -- If an earlier step began to move jobs of this key, the limits may have changed again since. Then after_key lies
            -- before this key and is kept, so that the keys in between are checked again.
            IF NOT half_moved THEN
                c.after_key := k;
            END IF;
            INSERT INTO howdah.limit_state (type_id, limit_key, check_at)
            SELECT c.type_id, k, now()
            WHERE EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = c.type_id AND w.limit_key = k)
            ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET check_at = now();
        END IF;
        at_most := at_most - 1 - moved;
    END LOOP;
    RETURN c;
END $$;

-- Makes one step through all leases, by id. Marks leases of the type that brokers claimed before they had read the limit, so
-- that these leases count towards the limit. Locked leases are skipped, because they are being settled.
CREATE OR REPLACE FUNCTION howdah.walk_leases(c howdah.limit_change, at_most integer) RETURNS howdah.limit_change LANGUAGE sql AS $$
    WITH seen AS MATERIALIZED (
        SELECT l.ctid, l.id, l.type_id = c.type_id AND l.limited IS NULL AS is_new
        FROM howdah.leased l WHERE l.id > c.after_id ORDER BY l.id LIMIT at_most
    ),
    free AS MATERIALIZED (
        SELECT l.ctid FROM howdah.leased l WHERE l.ctid = ANY (ARRAY(SELECT s.ctid FROM seen s WHERE s.is_new))
          AND EXISTS (SELECT FROM howdah.task_type t
                      WHERE t.id = c.type_id AND num_nonnulls(t.max_running, t.rate_per_s, t.brake_failures) > 0)
        FOR UPDATE SKIP LOCKED
    ),
    marked AS (UPDATE howdah.leased SET limited = true WHERE ctid = ANY (ARRAY(SELECT f.ctid FROM free f)))
    SELECT c.type_id, c.changed, c.due_at, c.walk, CASE WHEN count(*) = at_most THEN max(s.id) END, c.after_key, c.moving
    FROM seen s
$$;

-- Makes one step of applying changed limits, for one type that is due. at_most limits the keys and jobs of the step; it may
-- check ten times as many leases. Returns the time until the next step of any type in µs (0: now); null: no change is left to
-- apply.
CREATE OR REPLACE FUNCTION howdah.continue_limit_changes(at_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    c howdah.limit_change;
    -- For each walk, the time from the change of the limits to the start of the walk (tables/coordination.sql explains the
    -- walks).
    walks CONSTANT interval[] := ARRAY[interval '0', '2 seconds', '10 seconds', '45 seconds'];
    busy_us bigint := 0;
BEGIN
    SELECT * INTO c FROM howdah.limit_change WHERE due_at <= now() ORDER BY due_at, type_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Another broker works on the types that are due, or no type is due. Try again after 200 ms at the earliest.
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

-- Starts to apply changed limits of a type, and makes the first step, which usually suffices for the limit keys. Brokers make
-- the further steps (maintain/limits.rs), so that a change never fails because of too many jobs or keys.
CREATE OR REPLACE FUNCTION howdah.begin_limit_change(changed integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c howdah.limit_change;
BEGIN
    INSERT INTO howdah.limit_change AS l (type_id, changed, due_at) VALUES (begin_limit_change.changed, now(), now())
    ON CONFLICT ON CONSTRAINT limit_change_pkey DO UPDATE
    SET changed = now(), due_at = now(), walk = 0, after_id = NULL, after_key = ''
    RETURNING l.* INTO c;
    c := howdah.walk_keys(c, 500);
    UPDATE howdah.limit_change l SET after_key = coalesce(c.after_key, l.after_key), moving = c.moving
    WHERE l.type_id = c.type_id;
END $$;

-- Replaces the limits of a type, and starts to apply them. Returns false if nothing differs.
CREATE OR REPLACE FUNCTION howdah.replace_limits(of_name text, limits jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    of_type integer;
BEGIN
    UPDATE howdah.task_type t SET
        max_running = (limits ->> 'max_running')::integer, rate_per_s = (limits ->> 'rate_per_s')::double precision,
        rate_burst = (limits ->> 'rate_burst')::integer, key_max_running = (limits ->> 'key_max_running')::integer,
        key_strict = (limits ->> 'key_strict')::boolean, key_min_gap_ms = (limits ->> 'key_min_gap_ms')::bigint,
        key_gap_from_end = (limits ->> 'key_gap_from_end')::boolean,
        key_rate_per_s = (limits ->> 'key_rate_per_s')::double precision, key_rate_burst = (limits ->> 'key_rate_burst')::integer,
        brake_failures = (limits ->> 'brake_failures')::integer, brake_initial_ms = (limits ->> 'brake_initial_ms')::bigint,
        brake_max_ms = (limits ->> 'brake_max_ms')::bigint
    WHERE t.name = of_name AND howdah.limits_of(t) <> limits RETURNING t.id INTO of_type;
    IF of_type IS NULL THEN
        RETURN false;
    END IF;
    -- Without a brake, the type is not braked any more.
    IF NOT limits ? 'brake_failures' THEN
        DELETE FROM howdah.brake b WHERE b.type_id = of_type;
    END IF;
    PERFORM howdah.begin_limit_change(of_type);
    RETURN true;
END $$;

-- Sets how many jobs of a limit key may run at once; null: key_max_running of the type. Returns false if nothing differs. The
-- check of the key (howdah.admit) applies a lower limit to jobs that are ready.
CREATE OR REPLACE FUNCTION howdah.replace_key_limit(of_type integer, of_key text, most integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF most IS NULL THEN
        UPDATE howdah.limit_state g SET check_at = now(), max_running = NULL
        WHERE g.type_id = of_type AND g.limit_key = of_key AND g.max_running IS NOT NULL;
    ELSE
        INSERT INTO howdah.limit_state AS g (type_id, limit_key, check_at, max_running) VALUES (of_type, of_key, now(), most)
        ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET check_at = now(), max_running = excluded.max_running
        WHERE g.max_running IS DISTINCT FROM excluded.max_running;
    END IF;
    RETURN FOUND;
END $$;

-- Pauses a limit key until a time ('infinity': until it is resumed), or with null resumes it.
CREATE OR REPLACE FUNCTION howdah.pause_limit_key(of_type integer, of_key text, until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.limit_state (type_id, limit_key, check_at, paused_until, paused_at) VALUES (of_type, of_key, now(), until, now())
    ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET check_at = now(), paused_until = excluded.paused_until, paused_at = now();
    WITH deleted AS (
        DELETE FROM howdah.ready r WHERE r.type_id = of_type AND r.options ->> 'limit_key' = of_key COLLATE "C"
          AND r.options -> 'limit_key' IS NOT NULL AND until > now()
        RETURNING *
    )
    INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                key, limit_key, headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, of_key, headers,
           options, failures, payload
    FROM deleted;
END $$;
