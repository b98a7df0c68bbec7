-- Consequences of the end of jobs.

-- Carries out the consequences of the end of jobs: frees their keys or passes them to the successors, schedules checks of their
-- limit keys, releases or cancels their dependents, and notifies callers that wait for a job. The loop repeats this for the
-- cancelled dependents; one statement finds a whole chain of them. To avoid deadlocks, successors and dependents are locked
-- before keys, and limit states last, all at once and in the order of their keys. Dependents that are cancelled because a job
-- died keep their dependencies, so that they can be restored when that job is retried (revive_dependents).
-- attempt_starts: for each job whose attempt has ended, the start of the attempt.
CREATE OR REPLACE FUNCTION howdah.after_end(ids bigint[], type_ids integer[], keys text[], options jsonb[], endings howdah.ending[],
                                            attempt_starts timestamptz[] DEFAULT NULL)
RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    released bigint[];
    cancelled_dependents howdah.waiting[];
    cancelled_revivable boolean[];
    ended_ids text;
    limit_types integer[] := '{}';
    limit_keys text[] := '{}';
    limit_starts timestamptz[] := '{}';
    -- For each ended job: true if the dependents that its end cancels may be restored, because the job is dead and may be
    -- retried.
    revivable boolean[] := ARRAY(SELECT e = 'dead' FROM unnest(endings) WITH ORDINALITY AS u(e, n) ORDER BY n);
BEGIN
    LOOP
        SELECT limit_types || coalesce(array_agg(e.type_id), '{}'), limit_keys || coalesce(array_agg(e.options ->> 'limit_key'), '{}'),
               limit_starts || coalesce(array_agg(e.attempt_start), '{}')
        INTO limit_types, limit_keys, limit_starts
        FROM unnest(type_ids, options, attempt_starts) AS e(type_id, options, attempt_start) WHERE e.options ->> 'limit_key' IS NOT NULL;

        PERFORM FROM howdah.waiting w WHERE w.id = ANY (ARRAY(
            SELECT k.next_id FROM unnest(ids, type_ids, keys, after_end.options) AS e(id, type_id, key, options)
            CROSS JOIN LATERAL (SELECT k.next_id FROM howdah.job_key k
                                WHERE k.type_id = coalesce((e.options ->> 'key_type')::integer, e.type_id) AND k.key = e.key
                                  AND k.job_id = e.id AND k.next_id IS NOT NULL OFFSET 0) k
            UNION ALL
            SELECT d.job_id FROM unnest(ids, endings) AS e(id, ending)
            CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = e.id AND e.ending NOT IN ('moved', 'fallback') OFFSET 0) d))
        ORDER BY w.id FOR UPDATE;
        released := howdah.free_keys(ids, type_ids, keys, options, endings);

        -- Jobs that ended without success, and all waiting jobs that are cancelled because of them.
        WITH RECURSIVE bad AS (
            SELECT e.id, e.ending, e.revivable FROM unnest(ids, endings, revivable) AS e(id, ending, revivable)
            WHERE e.ending IN ('dead', 'cancelled', 'expired', 'discarded')
            UNION
            SELECT w.id, 'cancelled'::howdah.ending, bad.revivable
            FROM bad
            -- LATERAL with OFFSET 0 forces look-ups by index. A join may read both tables completely for each link of a chain.
            CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = bad.id OFFSET 0) d
            CROSS JOIN LATERAL (SELECT w.id, w.options FROM howdah.waiting w WHERE w.id = d.job_id OFFSET 0) w
            WHERE coalesce(w.options ->> 'on_dependency_failure', 'cancel') = 'cancel'
               OR w.options ->> 'on_dependency_failure' = 'wait' AND bad.ending <> 'dead'
        ),
        deleted AS (
            DELETE FROM howdah.waiting WHERE id = ANY (ARRAY(SELECT id FROM bad)) RETURNING *
        )
        SELECT array_agg(d::howdah.waiting), array_agg(b.revivable) INTO cancelled_dependents, cancelled_revivable
        FROM deleted d JOIN (SELECT bad.id, bool_and(bad.revivable) AS revivable FROM bad GROUP BY bad.id) b ON b.id = d.id;

        -- Delete dependencies on the ended jobs, except for dependents that may be restored or that keep waiting for a dead
        -- job.
        WITH deleted AS (
            DELETE FROM howdah.dependency WHERE ctid = ANY (ARRAY(
                SELECT d.ctid FROM unnest(ids, type_ids, endings, revivable) AS e(id, type_id, ending, revivable)
                CROSS JOIN LATERAL (SELECT d.ctid, d.job_id FROM howdah.dependency d WHERE d.after_id = e.id OFFSET 0) d
                WHERE e.ending NOT IN ('moved', 'fallback')
                  AND CASE WHEN e.revivable THEN
                          (SELECT w.options ->> 'on_dependency_failure' FROM howdah.waiting w WHERE w.id = d.job_id) = 'run'
                      -- type_id 0: the job had ended before this call (route_new). Keep dependencies of jobs that an earlier
                      -- call cancelled.
                      ELSE e.type_id <> 0 OR (SELECT w.id FROM howdah.waiting w WHERE w.id = d.job_id) IS NOT NULL
                           OR EXISTS (SELECT FROM unnest(cancelled_dependents) c WHERE c.id = d.job_id) END))
            RETURNING job_id
        )
        SELECT released || array_agg(DISTINCT job_id) INTO released FROM deleted;
        IF released IS NOT NULL THEN
            -- Dependents that were cancelled earlier, when another job died, can no longer be restored: one of their
            -- dependencies has now ended without success. The next iteration handles jobs that this call cancels.
            IF EXISTS (SELECT FROM unnest(endings, revivable) AS e(ending, revivable)
                       WHERE e.ending IN ('cancelled', 'expired', 'discarded') AND NOT e.revivable) THEN
                PERFORM howdah.drop_dependencies(ARRAY(
                    SELECT r FROM unnest(released) r WHERE (SELECT w.id FROM howdah.waiting w WHERE w.id = r) IS NULL
                      AND NOT EXISTS (SELECT FROM unnest(cancelled_dependents) c WHERE c.id = r)));
            END IF;
            RETURN QUERY SELECT * FROM howdah.reroute_waiting(released);
        END IF;

        FOR ended_ids IN
            SELECT string_agg(e.id::text, ',') FROM (
                SELECT w.id, row_number() OVER () AS n FROM unnest(ids, options, endings) AS w(id, options, ending)
                WHERE w.options ? 'awaited' AND w.ending NOT IN ('moved', 'fallback')) e
            GROUP BY e.n / 300
        LOOP
            PERFORM howdah.notify('d ' || ended_ids);
        END LOOP;

        EXIT WHEN cancelled_dependents IS NULL;
        revivable := cancelled_revivable;
        DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(
            SELECT j.id FROM unnest(cancelled_dependents) WITH ORDINALITY j WHERE NOT revivable[j.ordinality]));
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                    options, failures, payload)
        SELECT j.id, j.created, now(), j.type_id, 'cancelled', j.attempt, j.max_attempts, j.priority, j.key, j.headers,
               CASE WHEN revivable[j.ordinality]
                    THEN j.options || jsonb_build_object('revive', jsonb_strip_nulls(jsonb_build_object('timeout_ms', j.timeout_ms)))
                    ELSE j.options END,
               howdah.add_failure(j.failures, j.attempt, 'a job that it depends on did not succeed', NULL), j.payload
        FROM unnest(cancelled_dependents) WITH ORDINALITY j;
        PERFORM howdah.count_ended(ARRAY(SELECT j.type_id FROM unnest(cancelled_dependents) j), 'cancelled');
        SELECT array_agg(j.id), array_agg(j.type_id), array_agg(j.key), array_agg(j.options), array_agg('cancelled'::howdah.ending)
        INTO ids, type_ids, keys, options, endings
        FROM unnest(cancelled_dependents) j;
        attempt_starts := NULL;
    END LOOP;
    IF howdah.recheck_limits(limit_types, limit_keys, limit_starts) THEN
        RETURN NEXT ROW('limit', NULL, NULL, NULL, NULL)::howdah.wakeup;
    END IF;
END $$;

-- Deletes the dependencies of cancelled jobs that can no longer be restored, and the dependencies of their dependents.
CREATE OR REPLACE FUNCTION howdah.drop_dependencies(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH RECURSIVE lost AS (
        SELECT i.id FROM unnest(ids) AS i(id)
        UNION
        SELECT d.job_id FROM lost CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = lost.id OFFSET 0) d
    )
    DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM lost));
END $$;

-- Restores the jobs that were cancelled because the given jobs died, directly or through other jobs; returns their ids. The
-- caller has already moved the given jobs out of the table dead. A job stays cancelled while another job that it depends on is
-- dead. It stays cancelled for good if another job holds its key, the time by which it had to start has passed, or its history
-- was dropped.
CREATE OR REPLACE FUNCTION howdah.revive_dependents(parents bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    below bigint[];
    live bigint[];
    revived bigint[] := '{}';
    batch bigint[];
BEGIN
    WITH RECURSIVE b AS (
        SELECT p.id FROM unnest(parents) AS p(id)
        UNION
        SELECT d.job_id FROM b CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = b.id OFFSET 0) d
    )
    SELECT array_agg(b.id) INTO below FROM b CROSS JOIN LATERAL (SELECT h.id FROM howdah.history h WHERE h.id = b.id LIMIT 1) h;
    IF below IS NULL THEN
        RETURN;
    END IF;
    -- Marking locks the parents, so none of them ends before this transaction ends. Otherwise a restored job could wait for a
    -- parent that has just ended.
    live := howdah.mark_coordinated(ARRAY(SELECT DISTINCT d.after_id FROM unnest(below) AS b(id)
                                          CROSS JOIN LATERAL (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = b.id OFFSET 0) d),
                                    '{"coordinated": true}');
    LOOP
        WITH able AS MATERIALIZED (
            SELECT h.id, coalesce((h.options ->> 'key_type')::integer, h.type_id) AS key_type, h.key
            FROM howdah.history h
            WHERE h.id = ANY (below) AND h.outcome = 'cancelled' AND h.options -> 'revive' IS NOT NULL AND NOT howdah.is_late(h.options)
              AND NOT EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = h.id AND d.after_id <> ALL (live || revived) OFFSET 0)
        ),
        keyed AS (
            INSERT INTO howdah.job_key AS k (type_id, key, job_id)
            SELECT DISTINCT ON (a.key_type, a.key) a.key_type, a.key, a.id FROM able a WHERE a.key IS NOT NULL ORDER BY 1, 2, 3
            ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id,
                held_until = CASE WHEN k.job_id = excluded.job_id THEN k.held_until END, version = NULL, debounce_until = NULL
            WHERE k.next_id IS NULL AND (k.held_until <= now() OR k.job_id = excluded.job_id)
            RETURNING job_id
        ),
        deleted AS (
            DELETE FROM howdah.history WHERE outcome = 'cancelled'
              AND id = ANY (ARRAY(SELECT a.id FROM able a WHERE a.key IS NULL UNION ALL SELECT job_id FROM keyed))
            RETURNING *
        ),
        waits AS (
            INSERT INTO howdah.waiting (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, key, headers, options,
                                        failures, payload)
            SELECT id, priority * howdah.rank_step(type_id) + now_us, created, (options -> 'revive' ->> 'timeout_ms')::bigint, type_id,
                   attempt, max_attempts, priority, key, headers,
                   howdah.with_step(options - 'revive', priority, howdah.rank_step(type_id)), failures, payload
            FROM deleted RETURNING id
        )
        SELECT array_agg(id) INTO batch FROM waits;
        EXIT WHEN batch IS NULL;
        revived := revived || batch;
    END LOOP;
    -- Delete dependencies of jobs that were not restored although all of their parents are live: they can never be restored.
    PERFORM howdah.drop_dependencies(ARRAY(
        SELECT b.id FROM unnest(below) AS b(id) WHERE b.id <> ALL (revived)
          AND NOT EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = b.id AND d.after_id <> ALL (live || revived) OFFSET 0)));
    RETURN QUERY SELECT unnest(revived);
END $$;

-- Writes jobs, which the caller has deleted from their tables, to history, and carries out the consequences of their end
-- (after_end).
CREATE OR REPLACE FUNCTION howdah.finish(jobs howdah.waiting[], outcome howdah.job_state) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(jobs), 0) = 0 THEN
        RETURN;
    END IF;
    DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(jobs) WHERE options ? 'on_dependency_failure'));
    INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                options, failures, payload)
    SELECT j.id, j.created, now(), j.type_id, finish.outcome, j.attempt, j.max_attempts, j.priority, j.key, j.headers, j.options,
           j.failures, j.payload
    FROM unnest(jobs) j;
    PERFORM howdah.count_ended(ARRAY(SELECT j.type_id FROM unnest(jobs) j), outcome);
    RETURN QUERY SELECT w.* FROM (
        SELECT array_agg(id) AS ids, array_agg(type_id) AS type_ids, array_agg(key) AS keys, array_agg(options) AS options,
               array_agg(finish.outcome::text::howdah.ending) AS endings
        FROM unnest(jobs)) j,
        LATERAL howdah.after_end(j.ids, j.type_ids, j.keys, j.options, j.endings) w;
END $$;

-- Ends, as expired, the given jobs whose first attempt had not started by their expiry time.
CREATE OR REPLACE FUNCTION howdah.finish_unstarted(ids bigint[]) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    WITH from_ready AS (DELETE FROM howdah.ready WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    from_scheduled AS (DELETE FROM howdah.scheduled WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    from_waiting AS (DELETE FROM howdah.waiting WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    deleted AS (
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL AS limit_key,
               headers, options, failures, payload FROM from_ready
        UNION ALL SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL,
               headers, options, failures, payload FROM from_scheduled
        UNION ALL SELECT * FROM from_waiting
    )
    SELECT array_agg(ROW(deleted.*)::howdah.waiting) INTO jobs FROM deleted;
    RETURN QUERY SELECT * FROM howdah.finish(jobs, 'expired');
END $$;

-- Ends jobs that have not started by their expiry time. One call checks at most at_most rows of the table expiry. The row of a
-- leased job is kept, because the job is unstarted again if its worker releases it. That row is checked again after a tenth of
-- the time since the expiry, at least 10 s and at most 10 min. If another transaction has locked a row that one of the jobs
-- needs, the jobs are ended one by one, and locked jobs are checked again after a second.
CREATE OR REPLACE FUNCTION howdah.expire_unstarted(at_most integer) RETURNS SETOF howdah.wakeup LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    rows tid[];
    one bigint;
    locked bigint[] := '{}';
    wakeups howdah.wakeup[];
    new_wakeups howdah.wakeup[];
BEGIN
    SELECT array_agg(d.id), array_agg(d.ctid) INTO ids, rows
    FROM (SELECT id, ctid FROM howdah.expiry WHERE expire_at <= now() ORDER BY expire_at LIMIT at_most FOR UPDATE SKIP LOCKED) d;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        wakeups := ARRAY(SELECT w FROM howdah.finish_unstarted(ids) w);
    EXCEPTION WHEN lock_not_available THEN
        wakeups := '{}';
        PERFORM set_config('lock_timeout', '2ms', true);
        FOREACH one IN ARRAY ids LOOP
            BEGIN
                IF clock_timestamp() > now() + interval '1 second' THEN
                    locked := locked || one;
                ELSE
                    new_wakeups := ARRAY(SELECT w FROM howdah.finish_unstarted(ARRAY[one]) w);
                    wakeups := wakeups || new_wakeups;
                END IF;
            EXCEPTION WHEN lock_not_available THEN
                locked := locked || one;
            END;
        END LOOP;
    END;
    DELETE FROM howdah.expiry WHERE ctid = ANY (rows);
    INSERT INTO howdah.expiry (expire_at, id)
    SELECT now() + CASE WHEN l.id = ANY (locked) THEN interval '1 second'
                        ELSE least(greatest((extract(epoch FROM now()) - (l.options ->> 'expire_at_us')::numeric / 1000000) / 10, 10), 600)
                             * interval '1 second' END, l.id
    FROM (SELECT id, options FROM howdah.leased WHERE id = ANY (ids) AND attempt = 1
          -- Jobs that were not found, because another transaction moved them between tables during this call.
          UNION ALL SELECT id, options FROM howdah.ready WHERE id = ANY (ids) AND attempt = 0
          UNION ALL SELECT id, options FROM howdah.scheduled WHERE id = ANY (ids) AND attempt = 0
          UNION ALL SELECT id, options FROM howdah.waiting WHERE id = ANY (ids) AND attempt = 0) l
    WHERE howdah.is_late(l.options)
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT * FROM unnest(wakeups);
END $$;

-- Adds a mark to the options of jobs, and returns the ids of the jobs that have not ended. The mark tells the transaction that
-- ends a job to call after_end. A job that already has the mark is only locked, so that it does not end before this transaction
-- ends. The tables are searched again for jobs that another transaction was moving between two tables.
CREATE OR REPLACE FUNCTION howdah.mark_coordinated(ids bigint[], mark jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    missing bigint[] := ids;
    seen bigint[] := '{}';
    batch bigint[];
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
        SELECT array_agg(id) INTO batch
        FROM (SELECT id FROM a UNION ALL SELECT id FROM b UNION ALL SELECT id FROM c UNION ALL SELECT id FROM d UNION ALL SELECT id FROM e
              UNION ALL SELECT id FROM f UNION ALL SELECT id FROM g UNION ALL SELECT id FROM h) s;
        seen := seen || coalesce(batch, '{}');
        SELECT array_agg(id) INTO missing FROM unnest(ids) AS m(id)
        WHERE NOT EXISTS (SELECT FROM unnest(seen) AS s(id) WHERE s.id = m.id)
          AND (SELECT 1 FROM howdah.history h WHERE h.id = m.id LIMIT 1) IS NULL
          AND (SELECT 1 FROM howdah.dead x WHERE x.id = m.id) IS NULL;
        EXIT WHEN missing IS NULL;
    END LOOP;
    RETURN seen;
END $$;

-- Marks jobs whose end a caller waits for (WaitJobs); returns the ids of the jobs that have not ended. Jobs that already have
-- the mark are only read and not locked, because brokers are notified of their end in any case.
CREATE OR REPLACE FUNCTION howdah.mark_awaited(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    mark CONSTANT jsonb := '{"coordinated": true, "awaited": true}';
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
    RETURN marked || CASE WHEN others IS NULL THEN '{}' ELSE howdah.mark_coordinated(others, mark) END;
END $$;
