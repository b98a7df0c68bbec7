-- A job on its way in. fate: 0 its request was made before, 1 the key's holder is kept, 2 new, 4 the holder
-- was replaced, 5 the key's version is not newer, 6 runs after the holder that runs now, 7 the holder was put off.
CREATE TYPE howdah.new_job AS (
    place integer, id bigint, request_no integer, fate smallint, answer_id bigint, start_us bigint, rank bigint,
    type_id integer, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb, options jsonb,
    payload bytea, data bytea, extra jsonb
);

-- As a row of waiting. It begins when it does, whatever it waits for.
CREATE FUNCTION howdah.as_waiting(j howdah.new_job) RETURNS howdah.waiting LANGUAGE sql STABLE AS $$
    SELECT ROW(j.id, j.rank, now(), j.timeout_ms, NULL, j.type_id, 0, j.max_attempts, j.priority, j.key, NULL, j.headers,
               CASE WHEN j.start_us IS NULL THEN j.options
                    ELSE coalesce(j.options, '{}') || jsonb_build_object('start_us', j.start_us) END,
               NULL, j.payload)::howdah.waiting
$$;

-- Gives a job its key, or finds out what becomes of the one that has it. What has not begun is changed in its
-- place; beside what runs, the new one waits to run once more after it. Returns it with its fate, and what is
-- to be routed anew. Jobs are locked before keys, as by who ends a job.
CREATE FUNCTION howdah.take_key(INOUT j howdah.new_job, OUT moved howdah.waiting) LANGUAGE plpgsql AS $$
DECLARE
    k howdah.job_key;
    policy text := coalesce(j.extra ->> 'policy', 'keep');
    new_version bigint := (j.extra ->> 'version')::bigint;
    new_held timestamptz := now() + (j.extra ->> 'hold_ms')::bigint * interval '1 millisecond';
    latest timestamptz := now() + (j.extra ->> 'latest_ms')::bigint * interval '1 millisecond';
    target bigint;
BEGIN
    FOR try IN 1..20 LOOP
        INSERT INTO howdah.job_key (type_id, key, job_id, version, held_until, debounce_until)
        VALUES (j.type_id, j.key, j.id, new_version, new_held, latest) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            j.fate := 2;
            RETURN;
        END IF;
        SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key;
        CONTINUE WHEN NOT FOUND;
        IF k.held_until <= now() AND k.next_id IS NULL THEN
            -- Held for a time, and that is over; the job that had it may still run.
            UPDATE howdah.job_key o SET job_id = j.id, version = new_version, held_until = new_held,
                                        debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = k.job_id AND o.held_until <= now();
            CONTINUE WHEN NOT FOUND;
            j.fate := 2;
            RETURN;
        END IF;
        target := coalesce(k.next_id, k.job_id);
        j.answer_id := target;
        IF policy = 'keep' THEN
            j.fate := 1;
            RETURN;
        ELSIF policy = 'reject' THEN
            RAISE EXCEPTION 'job % has the key % already', target, to_json(j.key)
                USING ERRCODE = 'HW002', DETAIL = j.place::text;
        ELSIF policy = 'newer' AND new_version <= k.version THEN
            j.fate := 5;
            RETURN;
        END IF;
        moved := howdah.change_unbegun(j, target, policy, k.debounce_until);
        IF moved.id IS NOT NULL THEN
            UPDATE howdah.job_key o SET version = coalesce(new_version, o.version)
            WHERE o.type_id = j.type_id AND o.key = j.key;
            j.fate := CASE policy WHEN 'debounce' THEN 7 ELSE 4 END;
            RETURN;
        END IF;
        UPDATE howdah.leased SET options = coalesce(options, '{}') || '{"special": true}' WHERE id = k.job_id;
        IF FOUND THEN
            UPDATE howdah.job_key o SET next_id = j.id, version = coalesce(new_version, o.version),
                                        debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = k.job_id AND o.next_id IS NULL;
            IF FOUND THEN
                j.options := coalesce(j.options, '{}') || jsonb_build_object('special', true, 'behind', k.job_id);
                j.fate := 6;
                j.answer_id := j.id;
                RETURN;
            END IF;
        ELSIF try > 5 AND k.held_until > now() AND k.next_id IS NULL THEN
            -- Its job has finished, the key is held on.
            UPDATE howdah.job_key o SET job_id = j.id, version = coalesce(new_version, o.version),
                                        held_until = coalesce(new_held, o.held_until), debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = k.job_id;
            CONTINUE WHEN NOT FOUND;
            j.fate := 2;
            RETURN;
        END IF;
    END LOOP;
    -- Somebody was faster each time.
    RAISE EXCEPTION 'the key % changes hands all the time', to_json(j.key) USING ERRCODE = '40001';
END $$;

-- Takes a job that is not leased out of its table and gives it what another says; null if it is not there.
CREATE FUNCTION howdah.change_unbegun(j howdah.new_job, target bigint, policy text, latest timestamptz)
RETURNS howdah.waiting LANGUAGE plpgsql AS $$
DECLARE
    w howdah.waiting;
    kept jsonb;
BEGIN
    DELETE FROM howdah.ready r WHERE r.id = target
    RETURNING r.id, r.rank, r.created, r.timeout_ms, r.last_token, r.type_id, r.attempt, r.max_attempts, r.priority, r.key, NULL,
              r.headers, r.options, r.failures, r.payload INTO w;
    IF NOT FOUND THEN
        DELETE FROM howdah.scheduled s WHERE s.id = target
        RETURNING s.id, s.rank, s.created, s.timeout_ms, s.last_token, s.type_id, s.attempt, s.max_attempts, s.priority, s.key, NULL,
                  s.headers, s.options, s.failures, s.payload INTO w;
    END IF;
    IF NOT FOUND THEN
        DELETE FROM howdah.waiting s WHERE s.id = target RETURNING s.* INTO w;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The slot that it may have had is free: it may get another key, or another start.
    UPDATE howdah.limit_gate g SET check_at = now() WHERE g.type_id = w.type_id AND g.limit_key = w.options ->> 'limit_key';
    -- What ties it to other jobs stays. One between two stages begins with the first again.
    SELECT jsonb_object_agg(o.key, o.value) INTO kept FROM jsonb_each(w.options) o
    WHERE o.key IN ('special', 'behind', 'waited', 'parent', 'on_failure');
    w.type_id := j.type_id;
    kept := nullif(coalesce(j.options, '{}') || coalesce(kept, '{}'), '{}');
    IF policy = 'debounce' THEN
        j.start_us := least(j.start_us, (extract(epoch FROM latest) * 1000000)::bigint);
    END IF;
    IF j.start_us IS NOT NULL THEN
        kept := coalesce(kept, '{}') || jsonb_build_object('start_us', j.start_us);
        w.rank := j.rank;
    ELSE
        -- It stays where it stands among those of its priority.
        w.rank := howdah.reranked(w.rank, w.priority, w.options, j.priority, howdah.rank_step(j.type_id));
    END IF;
    w.options := howdah.with_step(kept, j.priority, howdah.rank_step(j.type_id));
    w.attempt := 0;
    w.limit_key := NULL;
    w.timeout_ms := j.timeout_ms;
    w.max_attempts := j.max_attempts;
    w.priority := j.priority;
    w.headers := j.headers;
    w.payload := j.payload;
    DELETE FROM howdah.payload p WHERE p.id = target;
    IF j.data IS NOT NULL THEN
        INSERT INTO howdah.payload (id, created, data) VALUES (target, now(), j.data);
    END IF;
    RETURN w;
END $$;

-- Marks jobs as special, wherever they are; those that are being moved are looked for again. Returns those found.
CREATE FUNCTION howdah.mark_special(ids bigint[], mark jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    missing bigint[] := ids;
    seen bigint[] := '{}';
    part bigint[];
BEGIN
    FOR try IN 1..4 LOOP
        WITH a AS (UPDATE howdah.ready SET options = coalesce(options, '{}') || mark WHERE id = ANY (missing) RETURNING id),
        b AS (UPDATE howdah.leased SET options = coalesce(options, '{}') || mark WHERE id = ANY (missing) RETURNING id),
        c AS (UPDATE howdah.scheduled SET options = coalesce(options, '{}') || mark WHERE id = ANY (missing) RETURNING id),
        d AS (UPDATE howdah.waiting SET options = coalesce(options, '{}') || mark WHERE id = ANY (missing) RETURNING id)
        SELECT array_agg(id) INTO part
        FROM (SELECT id FROM a UNION ALL SELECT id FROM b UNION ALL SELECT id FROM c UNION ALL SELECT id FROM d) f;
        seen := seen || coalesce(part, '{}');
        SELECT array_agg(id) INTO missing FROM unnest(ids) AS m(id)
        WHERE NOT EXISTS (SELECT FROM unnest(seen) AS s(id) WHERE s.id = m.id)
          AND NOT EXISTS (SELECT FROM howdah.history h WHERE h.id = m.id)
          AND NOT EXISTS (SELECT FROM howdah.dead x WHERE x.id = m.id);
        EXIT WHEN missing IS NULL;
    END LOOP;
    RETURN seen;
END $$;

-- Stores jobs that ask for more than a place in the order. One entry a job in $1 to $14, one a request with a
-- key in $15 to $17; $18 and $19: payloads that are kept apart. Answers: kind 0 (place, id, fate), and what
-- route says. What a job asks for and is not kept with it is in extra: policy, version, hold_ms, latest_ms of
-- its key; after (ids), after_places (in this statement).
CREATE FUNCTION howdah.enqueue_jobs(
    request_nos integer[], type_ids integer[], rank_bases bigint[], priorities smallint[], max_attempts smallint[],
    timeouts_ms bigint[], keys text[], headers jsonb[], options jsonb[], payloads bytea[], run_at_us bigint[],
    delays_ms bigint[], extras jsonb[], request_key_nos integer[], request_keys text[], body_hashes bytea[],
    apart_places integer[], apart_data bytea[])
RETURNS TABLE (kind smallint, place integer, id bigint, fate smallint, type_id integer, rank bigint, jobs bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    new howdah.new_job[];
    j howdah.new_job;
    w howdah.waiting;
    routed howdah.waiting[];
    r record;
    taken record;
    slot_freed boolean := false;
BEGIN
    SELECT array_agg(ROW(i.place, nextval('howdah.job_id'), i.request_no, NULL, NULL, i.start_us,
                         i.rank_base + greatest(coalesce(i.start_us, now_us), now_us), i.type_id, i.priority, i.max_attempts,
                         i.timeout_ms, i.key, i.headers,
                         CASE WHEN i.extra ? 'expire_ms' THEN coalesce(i.options, '{}') || jsonb_build_object(
                             'expire_us', now_us + (i.extra ->> 'expire_ms')::bigint * 1000) ELSE i.options END,
                         i.payload, a.data, i.extra)::howdah.new_job ORDER BY i.place)
    INTO new
    FROM (
        SELECT u.*, coalesce(u.run_at, now_us + u.delay_ms * 1000) AS start_us
        FROM unnest(request_nos, type_ids, rank_bases, priorities, max_attempts, timeouts_ms, keys, headers, options, payloads,
                    run_at_us, delays_ms, extras) WITH ORDINALITY
            AS u(request_no, type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options, payload, run_at,
                 delay_ms, extra, place)
    ) i LEFT JOIN unnest(apart_places, apart_data) AS a(place, data) ON a.place = i.place;

    FOR r IN SELECT q.no, q.key, q.hash FROM unnest(request_key_nos, request_keys, body_hashes) AS q(no, key, hash) ORDER BY q.key
    LOOP
        INSERT INTO howdah.request (key, body_hash, ids)
        SELECT r.key, r.hash, array_agg(n.id ORDER BY n.place) FROM unnest(new) n WHERE n.request_no = r.no
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            FOR i IN 1..cardinality(new) LOOP
                IF new[i].request_no = r.no THEN
                    new[i].fate := 0;
                END IF;
            END LOOP;
        END IF;
    END LOOP;

    FOR r IN
        SELECT n.place AS i, coalesce((n.type_id, n.key) = lead((n.type_id, n.key)) OVER o, false) AS again
        FROM unnest(new) n WHERE n.fate IS NULL AND n.key IS NOT NULL
        WINDOW o AS (ORDER BY n.type_id, n.key, n.place) ORDER BY n.type_id, n.key, n.place
    LOOP
        SELECT * INTO taken FROM howdah.take_key(new[r.i]);
        j := taken.j;
        w := taken.moved;
        new[r.i] := j;
        IF w.id IS NOT NULL THEN
            routed := array_append(routed, w);
            slot_freed := true;
        END IF;
        IF j.fate IN (2, 6) THEN
            routed := array_append(routed, howdah.as_waiting(j));
        END IF;
        -- The next one has the same key: it must find this one in its table.
        IF r.again AND routed IS NOT NULL THEN
            RETURN QUERY SELECT x.kind, NULL::integer, NULL::bigint, NULL::smallint, x.type_id, x.rank, x.jobs
                         FROM howdah.route(routed) x;
            routed := NULL;
        END IF;
    END LOOP;
    SELECT coalesce(routed, '{}') || coalesce(array_agg(howdah.as_waiting(n)), '{}') INTO routed
    FROM unnest(new) n WHERE n.fate IS NULL;
    INSERT INTO howdah.payload (id, created, data)
    SELECT n.id, now(), n.data FROM unnest(new) n WHERE n.data IS NOT NULL AND coalesce(n.fate, 2) IN (2, 6);
    INSERT INTO howdah.expiry (expire_at, id)
    SELECT to_timestamp((n.options ->> 'expire_us')::bigint / 1000000.0),
           CASE WHEN n.fate IN (4, 7) THEN n.answer_id ELSE n.id END
    FROM unnest(new) n WHERE n.options ? 'expire_us' AND coalesce(n.fate, 2) IN (2, 4, 6, 7)
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT x.kind, NULL::integer, NULL::bigint, NULL::smallint, x.type_id, x.rank, x.jobs
                 FROM howdah.place_after(new, routed) x;
    IF slot_freed THEN
        RETURN QUERY SELECT 3::smallint, NULL::integer, NULL::bigint, NULL::smallint, NULL::integer, 0::bigint, 1::bigint;
    END IF;
    -- What a repeat of the request will be told.
    UPDATE howdah.request q SET ids = t.ids
    FROM (SELECT k.key, array_agg(coalesce(n.answer_id, n.id) ORDER BY n.place) AS ids
          FROM unnest(request_key_nos, request_keys) AS k(no, key) JOIN unnest(new) n ON n.request_no = k.no
          WHERE n.fate IS DISTINCT FROM 0 GROUP BY k.key) t
    WHERE q.key = t.key AND q.ids <> t.ids;
    RETURN QUERY SELECT 0::smallint, n.place, coalesce(n.answer_id, n.id), coalesce(n.fate, 2::smallint), NULL::integer,
                        NULL::bigint, NULL::bigint
                 FROM unnest(new) n;
END $$;

-- Routes new jobs, those behind others with what they wait for. A job that they name must be known: in this
-- statement, alive, dead or in history.
CREATE FUNCTION howdah.place_after(new howdah.new_job[], routed howdah.waiting[]) RETURNS SETOF howdah.woken
LANGUAGE plpgsql AS $$
DECLARE
    parents bigint[];
    live bigint[];
    unknown record;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(new) n WHERE n.extra ? 'after' OR n.extra ? 'after_places') THEN
        RETURN QUERY SELECT * FROM howdah.route(routed);
        RETURN;
    END IF;
    INSERT INTO howdah.dependency (after_id, job_id)
    SELECT e.value::bigint, n.id
    FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.extra -> 'after') e
    WHERE n.extra ? 'after' AND coalesce(n.fate, 2) IN (2, 6)
    UNION
    SELECT coalesce(p.answer_id, p.id), n.id
    FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.extra -> 'after_places') e
    JOIN unnest(new) p ON p.place = e.value::integer
    WHERE n.extra ? 'after_places' AND coalesce(n.fate, 2) IN (2, 6)
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT * FROM howdah.route(routed);

    -- Those of this call know already.
    SELECT array_agg(DISTINCT d.after_id) INTO parents
    FROM unnest(new) n JOIN howdah.dependency d ON d.job_id = n.id
    WHERE NOT EXISTS (SELECT FROM unnest(new) p WHERE p.id = d.after_id);
    IF parents IS NULL THEN
        RETURN;
    END IF;
    live := howdah.mark_special(parents, '{"special": true}');
    -- Those behind a dead job may wait until somebody retries it or gives it up.
    UPDATE howdah.dead x SET options = coalesce(x.options, '{}') || '{"special": true}'
    WHERE x.id = ANY (parents) AND x.id <> ALL (live);
    SELECT d.after_id, n.place INTO unknown
    FROM unnest(new) n JOIN howdah.dependency d ON d.job_id = n.id
    WHERE d.after_id = ANY (parents) AND d.after_id <> ALL (live)
      AND NOT EXISTS (SELECT FROM howdah.history h WHERE h.id = d.after_id)
      AND NOT EXISTS (SELECT FROM howdah.dead x WHERE x.id = d.after_id)
    ORDER BY n.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'names job %, which is not known: it never was, or is forgotten', unknown.after_id
            USING ERRCODE = 'HW001', DETAIL = unknown.place::text, HINT = 'after';
    END IF;
    -- What has ended already ends for them now.
    RETURN QUERY SELECT w.* FROM (
        SELECT array_agg(e.id) AS ids, array_agg(0) AS type_ids, array_agg(NULL::text) AS keys,
               array_agg('{}'::jsonb) AS options, array_agg(e.state) AS states
        FROM (SELECT h.id, h.outcome AS state FROM howdah.history h WHERE h.id = ANY (parents) AND h.id <> ALL (live)
              UNION SELECT x.id, 5::smallint FROM howdah.dead x WHERE x.id = ANY (parents) AND x.id <> ALL (live)) e) e,
        LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.states) w
    WHERE e.ids IS NOT NULL;
END $$;

-- Acks of special jobs, and of those that became so meanwhile: to the next stage or to history, then what
-- follows. ids are sorted and unique. next_types: a type that the worker names instead of the next stage.
-- Answers: kind 0 (id, and its type if that had a limit), and what route says.
CREATE FUNCTION howdah.ack_special(ids bigint[], tokens bigint[], results bytea[], next_types integer[])
RETURNS TABLE (kind smallint, id bigint, type_id integer, rank bigint, jobs bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    gone howdah.leased[];
    onward howdah.waiting[];
    ended bigint[];
BEGIN
    WITH g AS (
        DELETE FROM howdah.leased l
        WHERE l.id = ANY (ids) AND l.token = tokens[width_bucket(l.id, ids)]
        RETURNING l.*
    )
    SELECT array_agg(g::howdah.leased) INTO gone FROM g;
    IF gone IS NULL THEN
        RETURN;
    END IF;

    -- The pause after a start is counted from there also when the job has ended before anybody looked.
    PERFORM FROM howdah.limit_gate l JOIN unnest(gone) g ON g.type_id = l.type_id AND g.options ->> 'limit_key' = l.limit_key
    JOIN howdah.task_type t ON t.id = l.type_id AND t.key_min_gap_ms IS NOT NULL
    ORDER BY l.type_id, l.limit_key FOR UPDATE OF l;
    IF FOUND THEN
        UPDATE howdah.limit_gate l SET last_start = greatest(l.last_start, s.leased_at)
        FROM (SELECT g.type_id, g.options ->> 'limit_key' AS limit_key, max(g.leased_at) AS leased_at
              FROM unnest(gone) g GROUP BY 1, 2) s
        WHERE l.type_id = s.type_id AND l.limit_key = s.limit_key;
    END IF;

    WITH next AS (
        SELECT g.*, results[width_bucket(g.id, ids)] AS result,
               coalesce(next_types[width_bucket(g.id, ids)], (g.options -> 'stages' -> 0)::integer) AS next_type
        FROM unnest(gone) g
    )
    SELECT array_agg(ROW(n.id, n.priority * howdah.rank_step(n.next_type) + now_us, n.created, n.timeout_ms, n.token,
               n.next_type, 0, n.max_attempts, n.priority, n.key, NULL, n.headers,
               howdah.with_step(howdah.next_stage(n.options, n.next_type, n.type_id, n.attempt, n.leased_at), n.priority,
                                howdah.rank_step(n.next_type)),
               n.failures,
               CASE WHEN n.options ->> 'stage_payload' = 'result' THEN coalesce(n.result, '') ELSE n.payload END
           )::howdah.waiting)
    INTO onward
    FROM next n WHERE n.next_type IS NOT NULL;

    SELECT array_agg(g.id) INTO ended FROM unnest(gone) g
    WHERE NOT EXISTS (SELECT FROM unnest(onward) o WHERE o.id = g.id);
    INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts, priority,
                                key, headers, options, failures, payload, result)
    SELECT g.id, g.created, g.leased_at, now(), g.token, g.type_id, 6, g.attempt, g.max_attempts, g.priority, g.key, g.headers,
           g.options, g.failures, g.payload, r.result
    FROM unnest(gone) g JOIN howdah.task_type t ON t.id = g.type_id
    CROSS JOIN LATERAL (SELECT results[width_bucket(g.id, ids)] AS result) r
    WHERE g.id = ANY (ended) AND howdah.keeps(t.history, g.failures, r.result);

    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs FROM howdah.route(onward) x;
    RETURN QUERY SELECT x.kind, NULL::bigint, x.type_id, x.rank, x.jobs
    FROM (
        SELECT array_agg(g.id) AS ids, array_agg(g.type_id) AS type_ids, array_agg(g.key) AS keys,
               array_agg(coalesce(g.options, '{}')) AS options,
               array_agg(CASE WHEN g.id = ANY (ended) THEN 6 ELSE 3 END::smallint) AS states
        FROM unnest(gone) g
    ) e, LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.states) x;
    RETURN QUERY SELECT 0::smallint, g.id, CASE WHEN g.limited THEN g.type_id END, NULL::bigint, NULL::bigint
                 FROM unnest(gone) g;
END $$;

-- Whether a succeeded job goes to history.
CREATE FUNCTION howdah.keeps(mode text, failures jsonb, result bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE mode WHEN 'none' THEN false WHEN 'failures' THEN failures IS NOT NULL
                     WHEN 'without_empty' THEN failures IS NOT NULL OR result IS NOT NULL ELSE true END
$$;

-- The options of a job that goes on to its next stage; what it did in this one is noted, the last 100. A stage
-- that the worker has named goes on behind it in the list, if it is there.
CREATE FUNCTION howdah.next_stage(options jsonb, next_type integer, type_id integer, attempt smallint, leased_at timestamptz)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    left_over jsonb := coalesce(options -> 'stages', '[]');
    done jsonb := coalesce(options -> 'stages_done', '[]');
    place integer;
BEGIN
    SELECT s.n INTO place FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n)
    WHERE s.id::integer = next_type ORDER BY s.n LIMIT 1;
    SELECT coalesce(jsonb_agg(s.id ORDER BY s.n), '[]') INTO left_over
    FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n) WHERE s.n > coalesce(place, 0);
    IF jsonb_array_length(done) >= 100 THEN
        done := done - 0;
    END IF;
    done := done || jsonb_build_object('type', type_id, 'attempt', attempt, 'started', leased_at, 'finished', now());
    options := coalesce(options, '{}') - 'expire_us' - 'start_us'
        || jsonb_build_object('special', true, 'stages', left_over, 'stages_done', done,
                              'key_type', coalesce(options -> 'key_type', to_jsonb(type_id)));
    IF options ->> 'stage_payload' = 'result' THEN
        options := options - 'payload_bytes';
    END IF;
    RETURN options;
END $$;

-- Marks jobs that somebody waits for; returns those that have not ended.
CREATE FUNCTION howdah.mark_waited(ids bigint[]) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT howdah.mark_special(ids, '{"special": true, "waited": true}')
$$;
