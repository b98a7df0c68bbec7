-- What a claim needs to know.

-- How many jobs of types with limits may be claimed now, of those wanted, and when to ask again (ms) if only time is
-- missing. Called before the claim, in its transaction: the row of limit_state is held until that ends. Until all brokers
-- have read a changed limit, and what they claimed without it is marked, all leases of the type are counted. That takes two
-- seconds, so there is no index for it.
CREATE OR REPLACE FUNCTION howdah.type_quota(type_ids integer[], wanted integer[])
RETURNS TABLE (type_id integer, allowed integer, retry_in_ms bigint) LANGUAGE plpgsql AS $$
DECLARE
    w record;
    g howdah.limit_state;
    filled double precision;
BEGIN
    FOR w IN
        SELECT t.id, u.wanted, t.max_running, t.rate_per_s, t.rate_burst,
               EXISTS (SELECT FROM howdah.limit_change c WHERE c.type_id = t.id AND c.walk < 2) AS is_new
        FROM unnest(type_ids, wanted) AS u(id, wanted) JOIN howdah.task_type t ON t.id = u.id ORDER BY t.id
    LOOP
        INSERT INTO howdah.limit_state AS l (type_id, limit_key) VALUES (w.id, '')
        ON CONFLICT ON CONSTRAINT limit_state_pkey DO UPDATE SET limit_key = '' RETURNING l.* INTO g;
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
            UPDATE howdah.limit_state l SET tokens = filled, refilled = now() WHERE l.type_id = w.id AND l.limit_key = '';
            IF allowed > floor(filled)::integer THEN
                allowed := floor(filled)::integer;
                retry_in_ms := ceil((1 - (filled - floor(filled))) / w.rate_per_s * 1000)::bigint;
            END IF;
        END IF;
        allowed := greatest(allowed, 0);
        RETURN NEXT;
    END LOOP;
END $$;
