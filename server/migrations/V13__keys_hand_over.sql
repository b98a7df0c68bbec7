-- Keys and dependents when several transactions are at them at once. A statement that has waited for a lock sees
-- what it waited for in the rows that it locked, and all else as it was before: so here rows are locked first, and
-- each step that follows is a statement of its own. Who is at a job that waits changes its row where it is: a
-- row that is deleted and inserted anew is lost to all who wait for the old one. The order of locks, for all:
-- jobs (ready, leased, scheduled, waiting; by id), keys (by type and key), gates (by type and key).

-- Locks jobs wherever they are. Those that move meanwhile may be missed.
CREATE FUNCTION howdah.lock_jobs(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM howdah.ready WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.leased WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.scheduled WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.waiting WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
END $$;

-- Limit keys of which a job has left: they are looked at again. False: nobody waits at them.
CREATE FUNCTION howdah.touch_gates(type_ids integer[], limit_keys text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT u.type_id, u.limit_key FROM unnest(type_ids, limit_keys) AS u(type_id, limit_key) ORDER BY 1, 2) u
    CROSS JOIN LATERAL (SELECT FROM howdah.limit_gate g WHERE g.type_id = u.type_id AND g.limit_key = u.limit_key FOR UPDATE) g;
    IF FOUND THEN
        UPDATE howdah.limit_gate SET check_at = now() WHERE ctid = ANY (ARRAY(
            SELECT g.ctid FROM unnest(type_ids, limit_keys) AS u(type_id, limit_key)
            CROSS JOIN LATERAL (SELECT g.ctid FROM howdah.limit_gate g
                                WHERE g.type_id = u.type_id AND g.limit_key = u.limit_key OFFSET 0) g));
    END IF;
    RETURN FOUND;
END $$;

-- Changed: keys are locked before anything is decided, and each decision is a statement that sees what was waited
-- for. (It was one statement: a successor that was replaced meanwhile waited for ever, and a key whose successor
-- had gone meanwhile was never freed.) The caller has locked the successors.
CREATE OR REPLACE FUNCTION howdah.free_keys(ids bigint[], type_ids integer[], keys text[], options jsonb[], states smallint[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
    of_types integer[];
    of_keys text[];
    next_ids bigint[];
BEGIN
    SELECT array_agg(e.id), array_agg(e.type_id), array_agg(e.key) INTO gone, of_types, of_keys
    FROM (SELECT e.id, coalesce((e.options ->> 'key_type')::integer, e.type_id) AS type_id, e.key
          FROM unnest(ids, type_ids, keys, options, states) AS e(id, type_id, key, options, state)
          WHERE e.key IS NOT NULL AND e.state <> 3 ORDER BY 2, 3) e;
    IF gone IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM FROM unnest(of_types, of_keys) AS e(type_id, key)
    CROSS JOIN LATERAL (SELECT FROM howdah.job_key k WHERE k.type_id = e.type_id AND k.key = e.key FOR UPDATE) k;
    -- One that was to run next with the key, and never will.
    UPDATE howdah.job_key SET next_id = NULL WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM unnest(gone, of_types, of_keys) AS e(id, type_id, key)
        CROSS JOIN LATERAL (SELECT k.ctid, k.job_id, k.next_id FROM howdah.job_key k
                            WHERE k.type_id = e.type_id AND k.key = e.key AND k.next_id IS NOT NULL OFFSET 0) k
        WHERE k.next_id = e.id
           OR k.job_id = e.id AND NOT EXISTS (SELECT FROM howdah.waiting w WHERE w.id = k.next_id)));
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM unnest(gone, of_types, of_keys) AS e(id, type_id, key)
        CROSS JOIN LATERAL (SELECT k.ctid FROM howdah.job_key k
                            WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id AND k.next_id IS NULL
                              AND (k.held_until IS NULL OR k.held_until <= now()) OFFSET 0) k));
    WITH next AS (
        UPDATE howdah.job_key SET job_id = next_id, next_id = NULL WHERE ctid = ANY (ARRAY(
            SELECT k.ctid FROM unnest(gone, of_types, of_keys) AS e(id, type_id, key)
            CROSS JOIN LATERAL (SELECT k.ctid FROM howdah.job_key k
                                WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id
                                  AND k.next_id IS NOT NULL OFFSET 0) k))
        RETURNING job_id
    )
    SELECT array_agg(job_id) INTO next_ids FROM next;
    UPDATE howdah.waiting w SET options = w.options - 'behind' WHERE w.id = ANY (next_ids);
    RETURN next_ids;
END $$;

-- Changed: a job that is behind another one with its key stays where it is.
CREATE OR REPLACE FUNCTION howdah.release_waiting(ids bigint[]) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    -- Two parents may end at once: who comes second waits here, and then sees that the other has ended.
    PERFORM FROM howdah.waiting WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    WITH gone AS (
        DELETE FROM howdah.waiting w WHERE id = ANY (ids) AND w.options -> 'behind' IS NULL
          AND NOT EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = w.id)
        RETURNING w.*
    )
    SELECT array_agg(gone::howdah.waiting) INTO jobs FROM gone;
    RETURN QUERY SELECT * FROM howdah.route(jobs);
END $$;

-- Changed: successors and dependents are locked before keys, gates after all, once and in their order.
CREATE OR REPLACE FUNCTION howdah.after_end(ids bigint[], type_ids integer[], keys text[], options jsonb[], states smallint[])
RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    loose bigint[];
    doomed howdah.waiting[];
    told text;
    gate_types integer[] := '{}';
    gate_keys text[] := '{}';
BEGIN
    LOOP
        SELECT gate_types || coalesce(array_agg(e.type_id), '{}'), gate_keys || coalesce(array_agg(e.options ->> 'limit_key'), '{}')
        INTO gate_types, gate_keys
        FROM unnest(type_ids, options) AS e(type_id, options) WHERE e.options ->> 'limit_key' IS NOT NULL;

        PERFORM FROM howdah.waiting w WHERE w.id = ANY (ARRAY(
            SELECT k.next_id FROM unnest(ids, type_ids, keys, after_end.options) AS e(id, type_id, key, options)
            CROSS JOIN LATERAL (SELECT k.next_id FROM howdah.job_key k
                                WHERE k.type_id = coalesce((e.options ->> 'key_type')::integer, e.type_id) AND k.key = e.key
                                  AND k.job_id = e.id AND k.next_id IS NOT NULL OFFSET 0) k
            UNION ALL
            SELECT d.job_id FROM unnest(ids, states) AS e(id, state)
            CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = e.id AND e.state > 4 OFFSET 0) d))
        ORDER BY w.id FOR UPDATE;
        loose := howdah.free_keys(ids, type_ids, keys, options, states);

        -- Children of those which ended badly, and theirs.
        WITH RECURSIVE bad AS (
            SELECT e.id, e.state FROM unnest(ids, states) AS e(id, state) WHERE e.state IN (5, 7, 8, 9)
            UNION
            SELECT w.id, 7::smallint
            FROM bad
            -- Look-ups, however many there are: a join would read all of both tables for each link of a chain.
            CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = bad.id OFFSET 0) d
            CROSS JOIN LATERAL (SELECT w.id, w.options FROM howdah.waiting w WHERE w.id = d.job_id OFFSET 0) w
            WHERE coalesce(w.options ->> 'on_failure', 'cancel') = 'cancel'
               OR w.options ->> 'on_failure' = 'wait' AND bad.state <> 5
        ),
        gone AS (
            DELETE FROM howdah.waiting WHERE id = ANY (ARRAY(SELECT id FROM bad)) RETURNING *
        )
        SELECT array_agg(gone::howdah.waiting) INTO doomed FROM gone;

        -- The others no longer wait for these; but for a dead job they may want to.
        WITH ended AS (
            SELECT e.id, e.state FROM unnest(ids, states) AS e(id, state) WHERE e.state > 4
        ),
        gone AS (
            DELETE FROM howdah.dependency d USING ended e
            WHERE d.after_id = e.id
              AND (e.state <> 5 OR EXISTS (SELECT FROM howdah.waiting w WHERE w.id = d.job_id
                                           AND w.options ->> 'on_failure' = 'run'))
            RETURNING d.job_id
        )
        SELECT loose || array_agg(DISTINCT job_id) INTO loose FROM gone;
        IF loose IS NOT NULL THEN
            RETURN QUERY SELECT * FROM howdah.release_waiting(loose);
        END IF;

        FOR told IN
            SELECT string_agg(e.id::text, ',') FROM (
                SELECT w.id, row_number() OVER () AS n FROM unnest(ids, options, states) AS w(id, options, state)
                WHERE w.options ? 'waited' AND w.state > 4) e
            GROUP BY e.n / 300
        LOOP
            PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'd ' || told);
        END LOOP;

        EXIT WHEN doomed IS NULL;
        DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(doomed)));
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                    options, failures, payload)
        SELECT id, created, now(), type_id, 7, attempt, max_attempts, priority, key, headers, j.options,
               howdah.add_failure(failures, attempt, 'a job that it was to run after did not succeed', NULL), payload
        FROM unnest(doomed) j;
        SELECT array_agg(j.id), array_agg(j.type_id), array_agg(j.key), array_agg(j.options), array_agg(7::smallint)
        INTO ids, type_ids, keys, options, states
        FROM unnest(doomed) j;
    END LOOP;
    IF howdah.touch_gates(gate_types, gate_keys) THEN
        RETURN NEXT ROW(3::smallint, NULL, 0, 1)::howdah.woken;
    END IF;
END $$;

-- Ends jobs that have not begun by their time. $1 at most. Changed: a time is kept for as long as its job may yet be
-- given back unbegun: for one that is leased it is looked at again, a tenth later than it is late, but after 10 s.
CREATE OR REPLACE FUNCTION howdah.expire_jobs(at_most integer) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    places tid[];
BEGIN
    SELECT array_agg(d.id), array_agg(d.ctid) INTO ids, places
    FROM (SELECT id, ctid FROM howdah.expiry WHERE expire_at <= now() ORDER BY expire_at LIMIT at_most FOR UPDATE SKIP LOCKED) d;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM howdah.end_unbegun(ids, 8::smallint);
    DELETE FROM howdah.expiry WHERE ctid = ANY (places);
    INSERT INTO howdah.expiry (expire_at, id)
    SELECT now() + least(greatest((extract(epoch FROM now()) - (l.options ->> 'expire_us')::numeric / 1000000) / 10, 10), 600)
                   * interval '1 second', l.id
    FROM (SELECT id, options FROM howdah.leased WHERE id = ANY (ids) AND attempt = 1
          -- These have moved while we looked.
          UNION ALL SELECT id, options FROM howdah.ready WHERE id = ANY (ids) AND attempt = 0
          UNION ALL SELECT id, options FROM howdah.scheduled WHERE id = ANY (ids) AND attempt = 0
          UNION ALL SELECT id, options FROM howdah.waiting WHERE id = ANY (ids) AND attempt = 0) l
    WHERE howdah.is_late(l.options)
    ON CONFLICT DO NOTHING;
END $$;

-- Changed: what is marked already is not written again, but locked: it must not end before who marks it is done.
CREATE OR REPLACE FUNCTION howdah.mark_special(ids bigint[], mark jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    missing bigint[] := ids;
    seen bigint[] := '{}';
    part bigint[];
BEGIN
    FOR try IN 1..4 LOOP
        WITH a AS (UPDATE howdah.ready SET options = coalesce(options, '{}') || mark
                   WHERE id = ANY (missing) AND NOT coalesce(options @> mark, false) RETURNING id),
        b AS (UPDATE howdah.leased SET options = coalesce(options, '{}') || mark
              WHERE id = ANY (missing) AND NOT coalesce(options @> mark, false) RETURNING id),
        c AS (UPDATE howdah.scheduled SET options = coalesce(options, '{}') || mark
              WHERE id = ANY (missing) AND NOT coalesce(options @> mark, false) RETURNING id),
        d AS (UPDATE howdah.waiting SET options = coalesce(options, '{}') || mark
              WHERE id = ANY (missing) AND NOT coalesce(options @> mark, false) RETURNING id),
        e AS (SELECT id FROM howdah.ready WHERE id = ANY (missing) AND options @> mark FOR KEY SHARE),
        f AS (SELECT id FROM howdah.leased WHERE id = ANY (missing) AND options @> mark FOR KEY SHARE),
        g AS (SELECT id FROM howdah.scheduled WHERE id = ANY (missing) AND options @> mark FOR KEY SHARE),
        h AS (SELECT id FROM howdah.waiting WHERE id = ANY (missing) AND options @> mark FOR KEY SHARE)
        SELECT array_agg(id) INTO part
        FROM (SELECT id FROM a UNION ALL SELECT id FROM b UNION ALL SELECT id FROM c UNION ALL SELECT id FROM d UNION ALL SELECT id FROM e
              UNION ALL SELECT id FROM f UNION ALL SELECT id FROM g UNION ALL SELECT id FROM h) s;
        seen := seen || coalesce(part, '{}');
        SELECT array_agg(id) INTO missing FROM unnest(ids) AS m(id)
        WHERE NOT EXISTS (SELECT FROM unnest(seen) AS s(id) WHERE s.id = m.id)
          AND NOT EXISTS (SELECT FROM howdah.history h WHERE h.id = m.id)
          AND NOT EXISTS (SELECT FROM howdah.dead x WHERE x.id = m.id);
        EXIT WHEN missing IS NULL;
    END LOOP;
    RETURN seen;
END $$;

-- Changed: what is marked already is only looked at; who waits is told of its end, if that is under way.
CREATE OR REPLACE FUNCTION howdah.mark_waited(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    mark CONSTANT jsonb := '{"special": true, "waited": true}';
    marked bigint[];
    others bigint[];
BEGIN
    SELECT coalesce(array_agg(m.id), '{}') INTO marked
    FROM (SELECT id FROM howdah.ready WHERE id = ANY (ids) AND options @> mark
          UNION ALL SELECT id FROM howdah.leased WHERE id = ANY (ids) AND options @> mark
          UNION ALL SELECT id FROM howdah.scheduled WHERE id = ANY (ids) AND options @> mark
          UNION ALL SELECT id FROM howdah.waiting WHERE id = ANY (ids) AND options @> mark) m;
    SELECT array_agg(i.id) INTO others FROM unnest(ids) AS i(id)
    WHERE NOT EXISTS (SELECT FROM unnest(marked) AS m(id) WHERE m.id = i.id);
    RETURN marked || CASE WHEN others IS NULL THEN '{}' ELSE howdah.mark_special(others, mark) END;
END $$;
