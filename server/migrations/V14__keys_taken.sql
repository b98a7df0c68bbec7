-- The second part of V13__keys_hand_over.sql: how an enqueue takes keys; and the repair of what is stored.

DROP FUNCTION howdah.take_key(howdah.new_job);
DROP FUNCTION howdah.change_unbegun(howdah.new_job, bigint, text, timestamptz);

-- A job that waits for another one, or has not begun, as another job with its key says.
CREATE FUNCTION howdah.changed(w howdah.waiting, j howdah.new_job, latest timestamptz) RETURNS howdah.waiting LANGUAGE plpgsql AS $$
DECLARE
    kept jsonb;
BEGIN
    -- What ties it to other jobs stays. One between two stages begins with the first again.
    SELECT jsonb_object_agg(o.key, o.value) INTO kept FROM jsonb_each(w.options) o
    WHERE o.key IN ('special', 'behind', 'waited', 'parent', 'on_failure');
    kept := nullif(coalesce(j.options, '{}') || coalesce(kept, '{}'), '{}');
    IF j.extra ->> 'policy' = 'debounce' THEN
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
    w.type_id := j.type_id;
    w.attempt := 0;
    w.limit_key := NULL;
    w.timeout_ms := j.timeout_ms;
    w.max_attempts := j.max_attempts;
    w.priority := j.priority;
    w.headers := j.headers;
    w.payload := j.payload;
    RETURN w;
END $$;

-- Takes a locked job that has not begun out of its table; one that waits for another job stays where it is.
CREATE FUNCTION howdah.take_unbegun(target bigint, place smallint, OUT w howdah.waiting, OUT stays boolean) LANGUAGE plpgsql AS $$
BEGIN
    stays := false;
    IF place = 1 THEN
        DELETE FROM howdah.ready r WHERE r.id = target
        RETURNING r.id, r.rank, r.created, r.timeout_ms, r.last_token, r.type_id, r.attempt, r.max_attempts, r.priority, r.key, NULL,
                  r.headers, r.options, r.failures, r.payload INTO w;
    ELSIF place = 3 THEN
        DELETE FROM howdah.scheduled s WHERE s.id = target
        RETURNING s.id, s.rank, s.created, s.timeout_ms, s.last_token, s.type_id, s.attempt, s.max_attempts, s.priority, s.key, NULL,
                  s.headers, s.options, s.failures, s.payload INTO w;
    ELSE
        SELECT s.* INTO w FROM howdah.waiting s WHERE s.id = target;
        stays := w.options -> 'behind' IS NOT NULL OR EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = target);
        IF NOT stays THEN
            DELETE FROM howdah.waiting s WHERE s.id = target;
        END IF;
    END IF;
END $$;

-- Locks a job that is not dead: 1 in ready, 2 leased, 3 scheduled, 4 waiting; 0: it has ended, or it moves.
CREATE FUNCTION howdah.lock_job(target bigint) RETURNS smallint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM howdah.ready WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 1; END IF;
    PERFORM FROM howdah.leased WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 2; END IF;
    PERFORM FROM howdah.scheduled WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 3; END IF;
    PERFORM FROM howdah.waiting WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 4; END IF;
    RETURN 0;
END $$;

-- Whether a job is in one of these tables. One statement sees each job once, also one that moves.
CREATE FUNCTION howdah.is_live(job_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM howdah.ready j WHERE j.id = job_id) OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = job_id)
        OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = job_id) OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = job_id);
END $$;

-- Gives a job its key, or finds out what becomes of the one that has it. Beside what runs, the new one waits to run
-- once more after it. Returns it with its fate; and if the key is ours now, the key and the job that it is for: as
-- it was, if it is to be changed, and whether it stays in waiting. Jobs are locked before keys, as by who ends a job.
CREATE FUNCTION howdah.take_key(INOUT j howdah.new_job, OUT k howdah.job_key, OUT w howdah.waiting, OUT stays boolean)
LANGUAGE plpgsql AS $$
DECLARE
    policy text := coalesce(j.extra ->> 'policy', 'keep');
    new_version bigint := (j.extra ->> 'version')::bigint;
    new_held timestamptz := now() + (j.extra ->> 'hold_ms')::bigint * interval '1 millisecond';
    latest timestamptz := now() + (j.extra ->> 'latest_ms')::bigint * interval '1 millisecond';
    target bigint;
    place smallint;
    taken record;
BEGIN
    stays := false;
    FOR try IN 1..20 LOOP
        INSERT INTO howdah.job_key AS o (type_id, key, job_id, version, held_until, debounce_until)
        VALUES (j.type_id, j.key, j.id, new_version, new_held, latest) ON CONFLICT DO NOTHING RETURNING o.* INTO k;
        IF NOT FOUND THEN
            SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key;
            CONTINUE WHEN NOT FOUND;
            IF k.held_until <= now() AND k.next_id IS NULL THEN
                -- Held for a time, and that is over; the job that had it may still run.
                UPDATE howdah.job_key o SET job_id = j.id, version = new_version, held_until = new_held, debounce_until = latest
                WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = k.job_id AND o.held_until <= now() AND o.next_id IS NULL
                RETURNING o.* INTO k;
                CONTINUE WHEN NOT FOUND;
            END IF;
        END IF;
        IF k.job_id = j.id THEN
            j.fate := 2;
            j.answer_id := NULL;
            w := howdah.as_waiting(j);
            RETURN;
        END IF;
        target := coalesce(k.next_id, k.job_id);
        j.answer_id := target;
        j.fate := CASE WHEN policy = 'keep' THEN 1 WHEN policy = 'newer' AND new_version <= k.version THEN 5 END;
        IF j.fate IS NOT NULL THEN
            RETURN;
        ELSIF policy = 'reject' THEN
            RAISE EXCEPTION 'job % has the key % already', target, to_json(j.key)
                USING ERRCODE = 'HW002', DETAIL = j.place::text;
        END IF;
        place := howdah.lock_job(target);
        -- It moves at this moment: without its lock, the key is not for us to wait for.
        CONTINUE WHEN place = 0 AND howdah.is_live(target);
        SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key FOR UPDATE;
        CONTINUE WHEN NOT FOUND OR coalesce(k.next_id, k.job_id) <> target;
        IF policy = 'newer' AND new_version <= k.version THEN
            j.fate := 5;
            RETURN;
        ELSIF place IN (1, 3, 4) THEN
            SELECT * INTO taken FROM howdah.take_unbegun(target, place);
            w := taken.w;
            stays := taken.stays;
            j.fate := CASE policy WHEN 'debounce' THEN 7 ELSE 4 END;
            RETURN;
        ELSIF place = 2 AND k.next_id IS NULL THEN
            UPDATE howdah.leased SET options = coalesce(options, '{}') || '{"special": true}' WHERE id = target;
            UPDATE howdah.job_key o SET next_id = j.id, version = coalesce(new_version, o.version), debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key RETURNING o.* INTO k;
            j.options := coalesce(j.options, '{}') || jsonb_build_object('special', true, 'behind', target);
            j.fate := 6;
            j.answer_id := j.id;
            w := howdah.as_waiting(j);
            RETURN;
        ELSIF place = 0 AND NOT howdah.is_live(target) THEN
            -- Its job has finished, the key is held on.
            UPDATE howdah.job_key o SET job_id = CASE WHEN o.next_id IS NULL THEN j.id ELSE o.job_id END, next_id = NULL,
                                        version = coalesce(new_version, o.version),
                                        held_until = coalesce(new_held, o.held_until), debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key RETURNING o.* INTO k;
            CONTINUE WHEN k.job_id <> j.id;
            j.fate := 2;
            j.answer_id := NULL;
            w := howdah.as_waiting(j);
            RETURN;
        END IF;
    END LOOP;
    -- Somebody was faster each time.
    RAISE EXCEPTION 'the key % changes hands all the time', to_json(j.key) USING ERRCODE = '40001';
END $$;

-- Gives jobs their keys, in the order of keys. Of several with one key only what comes of all is written: each change
-- of a row in one transaction makes the next one slower. Returns them with their fates, what is to be routed, and
-- the limit keys that changed jobs have left.
CREATE FUNCTION howdah.take_keys(INOUT new howdah.new_job[], OUT routed howdah.waiting[], OUT gate_types integer[], OUT gate_keys text[])
LANGUAGE plpgsql AS $$
DECLARE
    j howdah.new_job;
    k howdah.job_key;
    w howdah.waiting;
    taken record;
    first_no integer;
    old_version bigint;
    new_version bigint;
    held_data bytea;
    r record;
BEGIN
    PERFORM howdah.lock_jobs(t.ids) FROM (
        SELECT array_agg(o.id) AS ids
        FROM (SELECT DISTINCT n.type_id, n.key FROM unnest(new) n
              WHERE n.fate IS NULL AND n.key IS NOT NULL AND n.extra ->> 'policy' IN ('replace', 'newer', 'debounce')) n
        CROSS JOIN LATERAL (SELECT coalesce(o.next_id, o.job_id) AS id FROM howdah.job_key o
                            WHERE o.type_id = n.type_id AND o.key = n.key OFFSET 0) o) t
    WHERE cardinality(t.ids) > 1;
    FOR r IN
        SELECT n.place AS i, lag(n.place) OVER o IS NULL AS is_first, lead(n.place) OVER o IS NULL AS is_last
        FROM unnest(new) n WHERE n.fate IS NULL AND n.key IS NOT NULL
        WINDOW o AS (PARTITION BY n.type_id, n.key ORDER BY n.place) ORDER BY n.type_id, n.key, n.place
    LOOP
        j := new[r.i];
        IF r.is_first THEN
            w := NULL;
        END IF;
        new_version := (j.extra ->> 'version')::bigint;
        IF w.id IS NULL THEN
            SELECT * INTO taken FROM howdah.take_key(j);
            j := taken.j;
            k := taken.k;
            w := taken.w;
            first_no := r.i;
            old_version := k.version;
            held_data := j.data;
            IF j.fate IN (4, 7) THEN
                IF w.options ->> 'limit_key' IS NOT NULL THEN
                    gate_types := gate_types || w.type_id;
                    gate_keys := gate_keys || (w.options ->> 'limit_key');
                END IF;
                w := howdah.changed(w, j, k.debounce_until);
                k.version := coalesce(new_version, k.version);
            END IF;
        ELSE
            -- The key is ours, and the job that has it in our hands.
            j.answer_id := w.id;
            j.fate := CASE coalesce(j.extra ->> 'policy', 'keep') WHEN 'keep' THEN 1 WHEN 'debounce' THEN 7
                      WHEN 'newer' THEN CASE WHEN new_version <= k.version THEN 5 ELSE 4 END WHEN 'replace' THEN 4 END;
            IF j.fate IS NULL THEN
                RAISE EXCEPTION 'job % has the key % already', w.id, to_json(j.key) USING ERRCODE = 'HW002', DETAIL = j.place::text;
            ELSIF j.fate IN (4, 7) THEN
                w := howdah.changed(w, j, k.debounce_until);
                k.version := coalesce(new_version, k.version);
                held_data := j.data;
            END IF;
        END IF;
        new[r.i] := j;
        CONTINUE WHEN w.id IS NULL OR NOT r.is_last;
        IF k.version IS DISTINCT FROM old_version THEN
            UPDATE howdah.job_key o SET version = k.version WHERE o.type_id = k.type_id AND o.key = k.key;
        END IF;
        IF new[first_no].fate IN (2, 6) THEN
            new[first_no].data := held_data;
        ELSE
            DELETE FROM howdah.payload p WHERE p.id = w.id;
            INSERT INTO howdah.payload (id, created, data) SELECT w.id, now(), held_data WHERE held_data IS NOT NULL;
        END IF;
        IF taken.stays THEN
            UPDATE howdah.waiting o SET rank = w.rank, timeout_ms = w.timeout_ms, type_id = w.type_id, attempt = 0,
                   max_attempts = w.max_attempts, priority = w.priority, headers = w.headers, payload = w.payload,
                   options = coalesce(w.options, '{}') || '{"special": true}'
            WHERE o.id = w.id;
        ELSE
            routed := array_append(routed, w);
        END IF;
    END LOOP;
END $$;

-- Changed: keys are taken by take_keys, gates touched last. (What was new in this statement could not be changed by a
-- later job of it without going through its table: then it had two payloads, and ran before what it was to run after.)
CREATE OR REPLACE FUNCTION howdah.enqueue_jobs(
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
    routed howdah.waiting[];
    gate_types integer[];
    gate_keys text[];
    r record;
    taken record;
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

    IF EXISTS (SELECT FROM unnest(new) n WHERE n.key IS NOT NULL) THEN
        SELECT * INTO taken FROM howdah.take_keys(new);
        new := taken.new;
        routed := taken.routed;
        gate_types := taken.gate_types;
        gate_keys := taken.gate_keys;
    END IF;
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
    IF howdah.touch_gates(gate_types, gate_keys) THEN
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

-- Repairs what the former functions have left behind: keys of jobs that are no more, jobs behind such, and
-- dependents of jobs that have ended badly.
DO $$
DECLARE
    loose bigint[];
BEGIN
    UPDATE howdah.job_key k SET next_id = NULL
    WHERE k.next_id IS NOT NULL AND NOT EXISTS (SELECT FROM howdah.waiting w WHERE w.id = k.next_id);
    UPDATE howdah.job_key k SET job_id = k.next_id, next_id = NULL WHERE k.next_id IS NOT NULL AND NOT howdah.is_live(k.job_id);
    DELETE FROM howdah.job_key k
    WHERE k.next_id IS NULL AND k.held_until IS NULL
      AND NOT EXISTS (SELECT FROM howdah.ready j WHERE j.id = k.job_id) AND NOT EXISTS (SELECT FROM howdah.leased j WHERE j.id = k.job_id)
      AND NOT EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = k.job_id)
      AND NOT EXISTS (SELECT FROM howdah.waiting j WHERE j.id = k.job_id);
    WITH freed AS (
        UPDATE howdah.waiting w SET options = w.options - 'behind'
        WHERE w.options -> 'behind' IS NOT NULL AND NOT EXISTS (SELECT FROM howdah.job_key k WHERE k.next_id = w.id)
        RETURNING w.id, w.type_id, w.key
    ),
    keyed AS (
        INSERT INTO howdah.job_key (type_id, key, job_id) SELECT type_id, key, id FROM freed WHERE key IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    SELECT array_agg(id) INTO loose FROM freed;
    PERFORM howdah.release_waiting(loose);
    PERFORM w.* FROM (
        SELECT array_agg(e.id) AS ids, array_agg(0) AS type_ids, array_agg(NULL::text) AS keys, array_agg('{}'::jsonb) AS options,
               array_agg(e.state) AS states
        FROM (SELECT DISTINCT d.after_id FROM howdah.dependency d) d
        CROSS JOIN LATERAL (SELECT h.id, h.outcome AS state FROM howdah.history h WHERE h.id = d.after_id
                            UNION SELECT x.id, 5::smallint FROM howdah.dead x WHERE x.id = d.after_id) e) e,
    LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.states) w
    WHERE e.ids IS NOT NULL;
END $$;
