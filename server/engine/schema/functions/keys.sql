-- Functions for job keys, which several transactions may change at once. A statement that has waited for a lock sees the new
-- state of the rows that it locked, and the old state of all other rows. So a function locks rows first, and each further step
-- is a separate statement, which sees the new state of all rows. A waiting job is updated in place: if it were deleted and
-- inserted again, a statement that waits for the old row would not find the new one. To avoid deadlocks, all functions lock in
-- this order: jobs (ready, leased, scheduled, waiting; by id), keys (by type and key), limit states (by type and key).

-- Locks jobs, whatever their state. A job that another transaction moves between tables at this moment may be missed.
CREATE OR REPLACE FUNCTION howdah.lock_jobs(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM howdah.ready WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.leased WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.scheduled WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM howdah.waiting WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
END $$;

-- Locks a job that is not dead, and returns its state. Null: the job has ended, or another transaction is moving it between
-- tables.
CREATE OR REPLACE FUNCTION howdah.lock_job(target bigint) RETURNS howdah.job_state LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM howdah.ready WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 'ready'; END IF;
    PERFORM FROM howdah.leased WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 'leased'; END IF;
    PERFORM FROM howdah.scheduled WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 'scheduled'; END IF;
    PERFORM FROM howdah.waiting WHERE id = target FOR UPDATE;
    IF FOUND THEN RETURN 'waiting'; END IF;
    RETURN NULL;
END $$;

-- Frees the key of a succeeded job that has no successor, unless the key is held for a fixed time. Returns whether the key was
-- freed.
CREATE OR REPLACE FUNCTION howdah.free_key(of_type integer, of_key text, holder bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM howdah.job_key k WHERE k.type_id = of_type AND k.key = of_key AND k.job_id = holder AND k.held_until IS NULL;
    RETURN FOUND;
END $$;

-- Returns whether a job is ready, leased, scheduled or waiting. It is one statement with one snapshot, so it also finds a job
-- that another transaction is moving between these tables.
CREATE OR REPLACE FUNCTION howdah.is_live(job_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM howdah.ready j WHERE j.id = job_id) OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = job_id)
        OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = job_id) OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = job_id);
END $$;

-- Replaces an unstarted or waiting job w by the new job j with the same key, and returns the result: the data of j with the id
-- of w.
CREATE OR REPLACE FUNCTION howdah.with_replacement(w howdah.waiting, j howdah.new_job, latest timestamptz) RETURNS howdah.waiting LANGUAGE plpgsql AS $$
DECLARE
    kept jsonb;
BEGIN
    -- The job's relations to other jobs are kept. A job that has completed some of its stages starts with the first stage
    -- again.
    SELECT jsonb_object_agg(o.key, o.value) INTO kept FROM jsonb_each(w.options) o
    WHERE o.key IN ('coordinated', 'queued_behind', 'awaited', 'parent_id', 'on_dependency_failure', 'after');
    -- Workers of the job's fallback and later stages get the results of the jobs in `after`. The caller that replaces the job may
    -- have no right to see them, so a replacement that goes to other types does not pass them on.
    IF (j.options -> 'fallback', j.options -> 'next_stages') IS DISTINCT FROM (w.options -> 'fallback', w.options -> 'next_stages') THEN
        kept := kept - 'after';
    END IF;
    kept := nullif(coalesce(j.options, '{}') || coalesce(kept, '{}'), '{}');
    IF j.requested ->> 'key_policy' = 'debounce' THEN
        j.start_us := least(j.start_us, (extract(epoch FROM latest) * 1000000)::bigint);
    END IF;
    IF j.start_us IS NOT NULL THEN
        kept := coalesce(kept, '{}') || jsonb_build_object('start_us', j.start_us);
        w.rank := j.rank;
    ELSE
        -- The job keeps its position among the jobs of its priority.
        w.rank := howdah.reranked(w.rank, w.priority, w.options, j.priority, howdah.rank_step(j.type_id));
    END IF;
    w.options := howdah.with_step(kept, j.priority, howdah.rank_step(j.type_id));
    w.type_id := j.type_id;
    w.attempt := 0;
    -- Errors of the replaced payload, which readers of a later task type may not see.
    w.failures := NULL;
    w.limit_key := NULL;
    w.timeout_ms := j.timeout_ms;
    w.max_attempts := j.max_attempts;
    w.priority := j.priority;
    w.headers := j.headers;
    w.payload := j.payload;
    RETURN w;
END $$;

-- Deletes a locked job that has not started from its table, and returns the job. A job that waits for another job keeps its row
-- in the table waiting, which the caller updates (`stays` is true).
CREATE OR REPLACE FUNCTION howdah.take_unstarted(target bigint, state howdah.job_state, OUT w howdah.waiting, OUT stays boolean) LANGUAGE plpgsql AS $$
BEGIN
    stays := false;
    IF state = 'ready' THEN
        DELETE FROM howdah.ready r WHERE r.id = target
        RETURNING r.id, r.rank, r.created, r.timeout_ms, r.last_token, r.type_id, r.attempt, r.max_attempts, r.priority, r.key, NULL,
                  r.headers, r.options, r.failures, r.payload INTO w;
    ELSIF state = 'scheduled' THEN
        DELETE FROM howdah.scheduled s WHERE s.id = target
        RETURNING s.id, s.rank, s.created, s.timeout_ms, s.last_token, s.type_id, s.attempt, s.max_attempts, s.priority, s.key, NULL,
                  s.headers, s.options, s.failures, s.payload INTO w;
    ELSE
        SELECT s.* INTO w FROM howdah.waiting s WHERE s.id = target;
        stays := w.options -> 'queued_behind' IS NOT NULL OR EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = target);
        IF NOT stays THEN
            DELETE FROM howdah.waiting s WHERE s.id = target;
        END IF;
    END IF;
END $$;

-- Gives the new job j its key, or decides by the job's key policy what happens to the job that holds the key. If the holder is
-- running, the new job waits and runs after it. Returns j with its outcome. If this transaction has locked the key for a
-- change, it also returns the key's row k and the job w that will have the key: the new job, or the existing job as it was
-- before its replacement. `stays`: w still has its row in the table waiting. Jobs are locked before keys, as in after_end.
CREATE OR REPLACE FUNCTION howdah.take_key(INOUT j howdah.new_job, OUT k howdah.job_key, OUT w howdah.waiting, OUT stays boolean)
LANGUAGE plpgsql AS $$
DECLARE
    policy text := coalesce(j.requested ->> 'key_policy', 'keep');
    new_version bigint := (j.requested ->> 'key_version')::bigint;
    new_held timestamptz := now() + (j.requested ->> 'key_hold_ms')::bigint * interval '1 millisecond';
    latest timestamptz := now() + (j.requested ->> 'key_debounce_limit_ms')::bigint * interval '1 millisecond';
    target bigint;
    state howdah.job_state;
    taken record;
    last howdah.key_version;
BEGIN
    stays := false;
    FOR try IN 1..20 LOOP
        INSERT INTO howdah.job_key AS o (type_id, key, job_id, version, held_until, debounce_until)
        VALUES (j.type_id, j.key, j.id, new_version, new_held, latest) ON CONFLICT DO NOTHING RETURNING o.* INTO k;
        IF NOT FOUND THEN
            SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key;
            CONTINUE WHEN NOT FOUND;
            IF k.held_until <= now() AND k.next_id IS NULL THEN
                -- The time for which the key was held is over, so the new job takes the key, even if the former holder still
                -- runs.
                UPDATE howdah.job_key o SET job_id = j.id, version = new_version, held_until = new_held, debounce_until = latest
                WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = k.job_id AND o.held_until <= now() AND o.next_id IS NULL
                RETURNING o.* INTO k;
                CONTINUE WHEN NOT FOUND;
            END IF;
        END IF;
        IF policy = 'replace_if_newer' THEN
            -- Read after the key was taken: the insert has waited for the end of a former holder.
            SELECT * INTO last FROM howdah.key_version v WHERE v.type_id = j.type_id AND v.key = j.key;
            IF new_version <= last.version THEN
                DELETE FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key AND o.job_id = j.id;
                j.outcome := 'stale';
                j.answer_id := last.job_id;
                RETURN;
            END IF;
        END IF;
        IF k.job_id = j.id THEN
            j.outcome := 'new';
            j.answer_id := NULL;
            w := howdah.as_waiting(j);
            RETURN;
        END IF;
        target := coalesce(k.next_id, k.job_id);
        j.answer_id := target;
        j.outcome := CASE WHEN policy = 'keep' THEN 'kept' WHEN policy = 'replace_if_newer' AND new_version <= k.version THEN 'stale' END;
        IF j.outcome IS NOT NULL THEN
            RETURN;
        ELSIF policy = 'reject' THEN
            RAISE EXCEPTION 'job % holds the key %', target, to_json(j.key)
                USING ERRCODE = 'HW002', DETAIL = j.ordinal::text;
        END IF;
        state := howdah.lock_job(target);
        -- Another transaction is moving the job between tables, so it could not be locked. Try again: waiting for the key
        -- without the lock on the job could deadlock.
        CONTINUE WHEN state IS NULL AND howdah.is_live(target);
        SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = j.type_id AND o.key = j.key FOR UPDATE;
        CONTINUE WHEN NOT FOUND OR coalesce(k.next_id, k.job_id) <> target;
        IF policy = 'replace_if_newer' AND new_version <= k.version THEN
            j.outcome := 'stale';
            RETURN;
        ELSIF state IN ('ready', 'scheduled', 'waiting') THEN
            SELECT * INTO taken FROM howdah.take_unstarted(target, state);
            w := taken.w;
            stays := taken.stays;
            j.outcome := CASE policy WHEN 'debounce' THEN 'debounced' ELSE 'replaced' END;
            RETURN;
        ELSIF state = 'leased' AND k.next_id IS NULL THEN
            UPDATE howdah.leased SET options = coalesce(options, '{}') || '{"coordinated": true}' WHERE id = target;
            UPDATE howdah.job_key o SET next_id = j.id, version = coalesce(new_version, o.version), debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key RETURNING o.* INTO k;
            j.options := coalesce(j.options, '{}') || jsonb_build_object('coordinated', true, 'queued_behind', target);
            j.outcome := 'next';
            j.answer_id := j.id;
            w := howdah.as_waiting(j);
            RETURN;
        ELSIF state IS NULL AND NOT howdah.is_live(target) THEN
            -- The holder has ended, but the key is still held for a time. The policy allows the new job to take it.
            UPDATE howdah.job_key o SET job_id = CASE WHEN o.next_id IS NULL THEN j.id ELSE o.job_id END, next_id = NULL,
                                        version = coalesce(new_version, o.version),
                                        held_until = coalesce(new_held, o.held_until), debounce_until = latest
            WHERE o.type_id = j.type_id AND o.key = j.key RETURNING o.* INTO k;
            CONTINUE WHEN k.job_id <> j.id;
            j.outcome := 'new';
            j.answer_id := NULL;
            w := howdah.as_waiting(j);
            RETURN;
        END IF;
    END LOOP;
    -- All 20 tries failed, because other transactions changed the key at the same time.
    RAISE EXCEPTION 'the key % keeps changing its holder; try again', to_json(j.key) USING ERRCODE = '40001';
END $$;

-- Gives jobs their keys, in the order of keys. If several jobs of the call have the same key, only the final result is written,
-- because repeated changes of a row in one transaction get slower each time. Returns the jobs with their outcomes, the jobs to
-- pass to howdah.route, and the limit keys whose slots replaced jobs gave up.
CREATE OR REPLACE FUNCTION howdah.take_keys(INOUT new howdah.new_job[], OUT routed howdah.waiting[], OUT limit_types integer[], OUT limit_keys text[])
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
              WHERE n.outcome IS NULL AND n.key IS NOT NULL AND n.requested ->> 'key_policy' IN ('replace', 'replace_if_newer', 'debounce')) n
        CROSS JOIN LATERAL (SELECT coalesce(o.next_id, o.job_id) AS id FROM howdah.job_key o
                            WHERE o.type_id = n.type_id AND o.key = n.key OFFSET 0) o) t
    WHERE cardinality(t.ids) > 1;
    FOR r IN
        SELECT n.ordinal AS i, lag(n.ordinal) OVER o IS NULL AS is_first, lead(n.ordinal) OVER o IS NULL AS is_last
        FROM unnest(new) n WHERE n.outcome IS NULL AND n.key IS NOT NULL
        WINDOW o AS (PARTITION BY n.type_id, n.key ORDER BY n.ordinal) ORDER BY n.type_id, n.key, n.ordinal
    LOOP
        j := new[r.i];
        IF r.is_first THEN
            w := NULL;
        END IF;
        new_version := (j.requested ->> 'key_version')::bigint;
        IF w.id IS NULL THEN
            SELECT * INTO taken FROM howdah.take_key(j);
            j := taken.j;
            k := taken.k;
            w := taken.w;
            first_no := r.i;
            old_version := k.version;
            held_data := j.data;
            IF j.outcome IN ('replaced', 'debounced') THEN
                IF w.options ->> 'limit_key' IS NOT NULL THEN
                    limit_types := limit_types || w.type_id;
                    limit_keys := limit_keys || (w.options ->> 'limit_key');
                END IF;
                w := howdah.with_replacement(w, j, k.debounce_until);
                k.version := coalesce(new_version, k.version);
            END IF;
        ELSE
            -- An earlier job of this call already got the key, or changed its holder: w is the job that now has the key.
            j.answer_id := w.id;
            j.outcome := CASE coalesce(j.requested ->> 'key_policy', 'keep') WHEN 'keep' THEN 'kept' WHEN 'debounce' THEN 'debounced'
                         WHEN 'replace_if_newer' THEN CASE WHEN new_version <= greatest(k.version, (
                             SELECT v.version FROM howdah.key_version v WHERE v.type_id = j.type_id AND v.key = j.key))
                             THEN 'stale' ELSE 'replaced' END
                         WHEN 'replace' THEN 'replaced' END;
            IF j.outcome IS NULL THEN
                RAISE EXCEPTION 'job % holds the key %', w.id, to_json(j.key) USING ERRCODE = 'HW002', DETAIL = j.ordinal::text;
            ELSIF j.outcome IN ('replaced', 'debounced') THEN
                w := howdah.with_replacement(w, j, k.debounce_until);
                k.version := coalesce(new_version, k.version);
                held_data := j.data;
            END IF;
        END IF;
        new[r.i] := j;
        CONTINUE WHEN w.id IS NULL OR NOT r.is_last;
        IF k.version IS DISTINCT FROM old_version THEN
            UPDATE howdah.job_key o SET version = k.version WHERE o.type_id = k.type_id AND o.key = k.key;
        END IF;
        IF new[first_no].outcome IN ('new', 'next') THEN
            new[first_no].data := held_data;
        ELSE
            DELETE FROM howdah.payload p WHERE p.id = w.id;
            INSERT INTO howdah.payload (id, created, data) SELECT w.id, now(), held_data WHERE held_data IS NOT NULL;
        END IF;
        IF taken.stays THEN
            UPDATE howdah.waiting o SET rank = w.rank, timeout_ms = w.timeout_ms, type_id = w.type_id, attempt = 0,
                   max_attempts = w.max_attempts, priority = w.priority, headers = w.headers, payload = w.payload,
                   options = coalesce(w.options, '{}') || '{"coordinated": true}'
            WHERE o.id = w.id;
        ELSE
            routed := array_append(routed, w);
        END IF;
    END LOOP;
END $$;

-- Frees the keys of jobs that have ended, except keys that are held for a time, and records the versions of jobs that have
-- succeeded. Returns the ids of the successors, which get the keys and run next. The caller has locked the successors. Keys
-- are locked first, and each decision is a separate statement, which sees the changes of the transactions that held the locks.
-- Otherwise a successor that was replaced meanwhile would wait forever, and a key whose successor has ended meanwhile would
-- never be freed.
CREATE OR REPLACE FUNCTION howdah.free_keys(ids bigint[], type_ids integer[], keys text[], options jsonb[], endings howdah.ending[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    ended_ids bigint[];
    of_types integer[];
    of_keys text[];
    next_ids bigint[];
BEGIN
    SELECT array_agg(e.id), array_agg(e.type_id), array_agg(e.key) INTO ended_ids, of_types, of_keys
    FROM (SELECT e.id, coalesce((e.options ->> 'key_type')::integer, e.type_id) AS type_id, e.key
          FROM unnest(ids, type_ids, keys, options, endings) AS e(id, type_id, key, options, ending)
          WHERE e.key IS NOT NULL AND e.ending <> 'moved' ORDER BY 2, e.key COLLATE "C") e;
    IF ended_ids IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM FROM unnest(of_types, of_keys) AS e(type_id, key)
    CROSS JOIN LATERAL (SELECT FROM howdah.job_key k WHERE k.type_id = e.type_id AND k.key = e.key FOR UPDATE) k;
    -- The options have the version of the job itself, while job_key may have the version of its successor.
    INSERT INTO howdah.key_version AS v (type_id, key, version, job_id, ended)
    SELECT DISTINCT ON (1, 2) coalesce((e.options ->> 'key_type')::integer, e.type_id), e.key COLLATE "C",
           (e.options ->> 'key_version')::bigint, e.id, now()
    FROM unnest(ids, type_ids, keys, free_keys.options, endings) AS e(id, type_id, key, options, ending)
    WHERE e.ending = 'succeeded' AND e.key IS NOT NULL AND e.options ? 'key_version'
    ORDER BY 1, 2, e.id DESC
    ON CONFLICT ON CONSTRAINT key_version_pkey DO UPDATE SET version = excluded.version, job_id = excluded.job_id, ended = excluded.ended;
    -- Remove successors that will never run: the ended job is the successor itself, or the successor is no longer waiting.
    UPDATE howdah.job_key SET next_id = NULL WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM unnest(ended_ids, of_types, of_keys) AS e(id, type_id, key)
        CROSS JOIN LATERAL (SELECT k.ctid, k.job_id, k.next_id FROM howdah.job_key k
                            WHERE k.type_id = e.type_id AND k.key = e.key AND k.next_id IS NOT NULL OFFSET 0) k
        WHERE k.next_id = e.id
           OR k.job_id = e.id AND (SELECT w.id FROM howdah.waiting w WHERE w.id = k.next_id) IS NULL));
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM unnest(ended_ids, of_types, of_keys) AS e(id, type_id, key)
        CROSS JOIN LATERAL (SELECT k.ctid FROM howdah.job_key k
                            WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id AND k.next_id IS NULL
                              AND (k.held_until IS NULL OR k.held_until <= now()) OFFSET 0) k));
    WITH next AS (
        UPDATE howdah.job_key SET job_id = next_id, next_id = NULL WHERE ctid = ANY (ARRAY(
            SELECT k.ctid FROM unnest(ended_ids, of_types, of_keys) AS e(id, type_id, key)
            CROSS JOIN LATERAL (SELECT k.ctid FROM howdah.job_key k
                                WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id
                                  AND k.next_id IS NOT NULL OFFSET 0) k))
        RETURNING job_id
    )
    SELECT array_agg(job_id) INTO next_ids FROM next;
    UPDATE howdah.waiting w SET options = w.options - 'queued_behind' WHERE w.id = ANY (next_ids);
    RETURN next_ids;
END $$;

-- Cancels jobs whose attempt has just failed while a newer job with their key waits: a retry with outdated data would only
-- delay the newer job. The newer job can prevent this with on_holder_failure retry. The caller has put the failed jobs into
-- ready or scheduled. Returns the jobs that were moved to history; the caller must pass their end (cancelled) to after_end.
CREATE OR REPLACE FUNCTION howdah.supersede(ids bigint[], type_ids integer[], keys text[], options jsonb[])
RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    old_ids bigint[];
    next_ids bigint[];
BEGIN
    -- Lock the rows that after_end will lock, in the same order, so that no successor is cancelled before this transaction
    -- ends.
    PERFORM FROM howdah.waiting w WHERE w.id = ANY (ARRAY(
        SELECT k.next_id FROM unnest(ids, type_ids, keys, supersede.options) AS e(id, type_id, key, options)
        CROSS JOIN LATERAL (SELECT k.next_id FROM howdah.job_key k
                            WHERE k.type_id = coalesce((e.options ->> 'key_type')::integer, e.type_id) AND k.key = e.key
                              AND k.job_id = e.id AND k.next_id IS NOT NULL OFFSET 0) k
        UNION ALL
        SELECT d.job_id FROM unnest(ids) AS e(id)
        CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = e.id OFFSET 0) d))
    ORDER BY w.id FOR UPDATE;
    SELECT array_agg(e.id ORDER BY e.id), array_agg(w.id ORDER BY e.id) INTO old_ids, next_ids
    FROM unnest(ids, type_ids, keys, supersede.options) AS e(id, type_id, key, options)
    CROSS JOIN LATERAL (SELECT k.next_id FROM howdah.job_key k
                        WHERE k.type_id = coalesce((e.options ->> 'key_type')::integer, e.type_id) AND k.key = e.key
                          AND k.job_id = e.id AND k.next_id IS NOT NULL OFFSET 0) k
    CROSS JOIN LATERAL (SELECT w.id, w.options FROM howdah.waiting w WHERE w.id = k.next_id OFFSET 0) w
    WHERE w.options ->> 'on_holder_failure' IS DISTINCT FROM 'retry';
    IF old_ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH from_ready AS (DELETE FROM howdah.ready WHERE id = ANY (old_ids) RETURNING *),
    from_scheduled AS (DELETE FROM howdah.scheduled WHERE id = ANY (old_ids) RETURNING *),
    deleted AS (
        SELECT r.id, r.created, NULL::timestamptz AS leased_at, r.last_token, r.type_id, r.attempt, r.max_attempts, r.priority, r.key,
               r.headers, r.options, r.failures, r.payload FROM from_ready r
        UNION ALL SELECT s.id, s.created, s.leased_at, s.last_token, s.type_id, s.attempt, s.max_attempts, s.priority, s.key, s.headers,
               s.options, s.failures, s.payload FROM from_scheduled s
    ),
    counted AS (
        INSERT INTO howdah.statistics_change (type_id, cancelled) SELECT d.type_id, count(*) FROM deleted d GROUP BY d.type_id
    )
    -- The token of the failed attempt is stored, so that a repeat of the worker's outcome is answered OK.
    INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts, priority, key,
                                headers, options, failures, payload)
    SELECT d.id, d.created, d.leased_at, now(), d.last_token, d.type_id, 'cancelled', d.attempt, d.max_attempts, d.priority, d.key,
           d.headers, d.options,
           howdah.add_failure(d.failures, d.attempt, 'superseded by job ' || next_ids[width_bucket(d.id, old_ids)], NULL), d.payload
    FROM deleted d
    RETURNING id;
END $$;
