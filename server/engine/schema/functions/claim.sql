-- Quotas of task types with limits, for a claim.

-- Returns, for task types with limits, how many of the wanted jobs may be claimed now. retry_in_ms: delay before the next call,
-- if only time raises the quota (rate limit, brake) or the row of the type is locked. A claim calls this function first, in its
-- transaction: the type's row of limit_state stays locked until the transaction ends. Only leases with the mark `limited`
-- count; a claim sets this mark if it knows a limit of the type. For about two seconds after a limit is set, all leases of the
-- type count, because brokers that have not read the limit claim without the mark. No index supports this rare count. A type
-- whose row another transaction has locked gets a quota of 0, so that the other types do not wait. The call waits up to
-- lock_timeout for the first locked row, and 1 ms for each further one, because brokers hold such rows for milliseconds.
CREATE OR REPLACE FUNCTION howdah.type_quota(type_ids integer[], wanted integer[])
RETURNS TABLE (type_id integer, allowed integer, retry_in_ms bigint, is_locked boolean) LANGUAGE plpgsql AS $$
DECLARE
    w record;
    g howdah.limit_state;
    b howdah.brake;
    filled double precision;
    saved_lock_timeout text := current_setting('lock_timeout');
BEGIN
    FOR w IN
        SELECT t AS of_type, t.id, u.wanted, t.max_running, t.rate_per_s, t.rate_burst, t.brake_failures,
               EXISTS (SELECT FROM howdah.limit_change c WHERE c.type_id = t.id AND c.walk < 2) AS is_new
        FROM unnest(type_ids, wanted) AS u(id, wanted) JOIN howdah.task_type t ON t.id = u.id ORDER BY t.id
    LOOP
        type_id := w.id;
        allowed := w.wanted;
        retry_in_ms := NULL;
        is_locked := false;
        SELECT * INTO g FROM howdah.limit_state l WHERE l.type_id = w.id AND l.limit_key = '' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            BEGIN
                INSERT INTO howdah.limit_state AS l (type_id, limit_key) VALUES (w.id, '')
                ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET limit_key = '' RETURNING l.* INTO g;
            EXCEPTION WHEN lock_not_available THEN
                PERFORM set_config('lock_timeout', '1ms', true);
                allowed := 0;
                retry_in_ms := 250;
                is_locked := true;
                RETURN NEXT;
                CONTINUE;
            END;
        END IF;
        IF w.max_running IS NOT NULL AND w.is_new THEN
            allowed := least(allowed, w.max_running - (
                SELECT count(*) FROM (SELECT FROM howdah.leased l WHERE l.type_id = w.id LIMIT w.max_running) n)::integer);
        ELSIF w.max_running IS NOT NULL THEN
            allowed := least(allowed, w.max_running - (
                SELECT count(*) FROM howdah.leased l WHERE l.type_id = w.id AND l.limited)::integer);
        END IF;
        IF w.rate_per_s IS NOT NULL THEN
            filled := least(w.rate_burst, coalesce(
                g.tokens + howdah.elapsed_s(g.refilled) * w.rate_per_s, w.rate_burst));
            UPDATE howdah.limit_state l SET tokens = filled, refilled = now() WHERE l.type_id = w.id AND l.limit_key = '';
            IF allowed > floor(filled)::integer THEN
                allowed := floor(filled)::integer;
                retry_in_ms := ceil(least((1 - (filled - floor(filled))) / w.rate_per_s, 86400) * 1000)::bigint;
            END IF;
        END IF;
        IF w.brake_failures IS NOT NULL THEN
            SELECT * INTO b FROM howdah.brake k WHERE k.type_id = w.id AND k.since IS NOT NULL;
            IF b.next_at > now() THEN
                allowed := 0;
                retry_in_ms := ceil(extract(epoch FROM b.next_at - now()) * 1000)::bigint;
            ELSIF b.tried IS NOT NULL THEN
                allowed := 0;
                IF NOT EXISTS (SELECT FROM howdah.leased l WHERE l.type_id = w.id AND l.limited AND l.leased_at = b.tried) THEN
                    -- The trial has ended, and its failure is not counted yet, or its outcome does not count. The next pause
                    -- begins. A row that another transaction has locked is skipped, so that the claim does not wait.
                    retry_in_ms := ceil(extract(epoch FROM howdah.brake_pause(w.of_type, b.trials)) * 1000)::bigint;
                    UPDATE howdah.brake k SET tried = NULL, next_at = now() + howdah.brake_pause(w.of_type, k.trials)
                    WHERE k.ctid = ANY (ARRAY(SELECT o.ctid FROM howdah.brake o WHERE o.type_id = w.id FOR UPDATE SKIP LOCKED));
                END IF;
            ELSIF FOUND THEN
                allowed := least(allowed, 1);
            END IF;
        END IF;
        allowed := greatest(allowed, 0);
        RETURN NEXT;
    END LOOP;
    -- Restore lock_timeout: the claim that follows may wait for short locks, such as the lock for adding a page to a table.
    PERFORM set_config('lock_timeout', saved_lock_timeout, true);
END $$;
