-- Undoes bulk operations: restores jobs that they have ended, from history and the journal (howdah.bulk_change).

-- Gives a restored job its key. If the job was the successor for the key and the holder has not ended, it becomes the successor
-- again. Returns an empty text if the job has the key, 'queued' if it is the successor, else why it cannot have the key.
CREATE OR REPLACE FUNCTION howdah.restore_key(c howdah.bulk_change, of_type integer, of_key text, queued_behind bigint, restored_ids bigint[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    k howdah.job_key;
BEGIN
    SELECT * INTO k FROM howdah.job_key o WHERE o.type_id = of_type AND o.key = of_key FOR UPDATE;
    -- The holder still has the mark `coordinated`, from when this job became its successor.
    IF FOUND AND k.job_id = queued_behind AND k.next_id IS NULL AND (k.job_id = ANY (restored_ids) OR howdah.is_live(k.job_id)) THEN
        UPDATE howdah.job_key o SET next_id = c.job_id WHERE o.type_id = of_type AND o.key = of_key;
        RETURN 'queued';
    END IF;
    INSERT INTO howdah.job_key AS o (type_id, key, job_id, version, debounce_until)
    VALUES (of_type, of_key, c.job_id, c.key_version, c.key_debounce_until)
    -- A conflict may be with a row of this job itself, if the key is held for a time after the job's end.
    ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id,
        version = CASE WHEN o.job_id = excluded.job_id THEN o.version ELSE excluded.version END,
        debounce_until = CASE WHEN o.job_id = excluded.job_id THEN o.debounce_until ELSE excluded.debounce_until END,
        held_until = CASE WHEN o.job_id = excluded.job_id THEN o.held_until END
    WHERE o.next_id IS NULL AND (o.held_until <= now() OR o.job_id = excluded.job_id);
    IF FOUND THEN
        RETURN '';
    END IF;
    RETURN format('job %s holds its key', coalesce(k.job_id::text, '?'));
END $$;

-- Returns why the job's own data prevents its restore; null: its data does not prevent it.
CREATE OR REPLACE FUNCTION howdah.why_not_restored(c howdah.bulk_change, options jsonb, attempt integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
        WHEN options ? 'payload_bytes' AND (SELECT 1 FROM howdah.payload p WHERE p.id = c.job_id LIMIT 1) IS NULL THEN
            'its payload has been dropped'
        WHEN c.state <> 'dead' AND attempt = 0 AND howdah.is_late(options) THEN 'the time by which it had to start has passed'
        WHEN options ?| '{fallback,next_stages}' AND EXISTS (
            SELECT FROM (SELECT (options ->> 'fallback')::integer AS id
                         UNION ALL SELECT jsonb_array_elements_text(options -> 'next_stages')::integer) n
            WHERE n.id IS NOT NULL AND NOT EXISTS (SELECT FROM howdah.task_type t WHERE t.id = n.id)) THEN
            'a task type that it names has been deleted'
        END;
END $$;

-- Returns a parent (a job that this job depends on) that prevents the restore of the job; null: no parent does. A parent in no
-- table prevents it too, because it is not known whether that parent succeeded.
CREATE OR REPLACE FUNCTION howdah.blocking_parent(c howdah.bulk_change, on_failure text, live bigint[], dead_ones bigint[])
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT p FROM unnest(c.after_ids) p
        WHERE p <> ALL (live) AND NOT (p = ANY (dead_ones) AND on_failure <> 'cancel')
          AND coalesce((SELECT h.outcome <> 'succeeded' AND on_failure <> 'run' FROM howdah.history h WHERE h.id = p LIMIT 1), true)
        ORDER BY p LIMIT 1);
END $$;

-- Moves jobs from history back to their former tables: jobs without the mark `coordinated` directly, the others by
-- howdah.route. A job that was leased becomes ready, as if its worker had released it. The caller has locked the jobs and their
-- keys, and stored their dependencies.
CREATE OR REPLACE FUNCTION howdah.restore_jobs_of_bulk(of_bulk bigint, ids bigint[], unqueued bigint[]) RETURNS SETOF howdah.wakeup
LANGUAGE plpgsql AS $$
DECLARE
    routed howdah.waiting[];
    wakeups howdah.wakeup[];
    lowest bigint;
    highest bigint;
BEGIN
    SELECT min(i), max(i) INTO lowest, highest FROM unnest(ids) i;
    WITH marked AS (
        UPDATE howdah.bulk_change SET undone = now()
        WHERE bulk_id = of_bulk AND undone IS NULL AND job_id >= lowest AND job_id <= highest AND job_id = ANY (ids) RETURNING *
    ),
    deleted AS (DELETE FROM howdah.history WHERE id = ANY (ids) AND outcome IN ('cancelled', 'discarded') RETURNING *),
    restored AS MATERIALIZED (
        SELECT d.id, howdah.reranked(n.rank, d.priority, d.options, d.priority, s.step) AS rank, d.created, n.timeout_ms, n.last_token,
               n.at, d.leased_at, d.type_id, CASE WHEN n.state = 'leased' THEN d.attempt - 1 ELSE d.attempt END::smallint AS attempt,
               d.max_attempts, d.priority, d.key, d.headers,
               howdah.with_step(CASE WHEN d.id = ANY (unqueued) THEN d.options - 'queued_behind' ELSE d.options END, d.priority, s.step)
                   AS options,
               d.failures, d.payload, n.state, n.state = 'waiting' OR d.options -> 'coordinated' IS NOT NULL AS is_coordinated
        FROM deleted d JOIN marked n ON n.job_id = d.id
        CROSS JOIN LATERAL (SELECT howdah.rank_step(d.type_id) AS step OFFSET 0) s
    ),
    to_ready AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
                                  options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers, options, failures, payload
        FROM restored WHERE state IN ('ready', 'leased') AND NOT is_coordinated RETURNING type_id, rank
    ),
    to_scheduled AS (
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, leased_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, at, leased_at, type_id, attempt, max_attempts, priority, key, headers, options,
               failures, payload
        FROM restored WHERE state = 'scheduled' RETURNING run_at
    ),
    to_dead AS (
        INSERT INTO howdah.dead (id, rank, created, timeout_ms, last_token, leased_at, died, type_id, attempt, max_attempts, priority,
                                 key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, leased_at, at, type_id, attempt, max_attempts, priority, key, headers, options,
               failures, payload
        FROM restored WHERE state = 'dead'
    ),
    to_expire AS (
        INSERT INTO howdah.expiry (expire_at, id)
        SELECT to_timestamp((options ->> 'expire_at_us')::bigint / 1000000.0), id FROM restored
        WHERE state <> 'dead' AND attempt = 0 AND options -> 'expire_at_us' IS NOT NULL ON CONFLICT DO NOTHING
    )
    SELECT ARRAY(SELECT ROW(b.id, b.rank, b.created, b.timeout_ms, b.last_token, b.type_id, b.attempt, b.max_attempts, b.priority, b.key,
                            NULL, b.headers, b.options, b.failures, b.payload)::howdah.waiting
                 FROM restored b WHERE b.state IN ('ready', 'leased', 'waiting') AND b.is_coordinated),
           ARRAY(SELECT ROW('ready', r.type_id, min(r.rank), count(*), NULL)::howdah.wakeup FROM to_ready r GROUP BY r.type_id
                 UNION ALL
                 SELECT ROW('scheduled', NULL, NULL, count(*), (extract(epoch FROM min(s.run_at) - now()) * 1000000)::bigint)::howdah.wakeup
                 FROM to_scheduled s HAVING count(*) > 0)
    INTO routed, wakeups;
    RETURN QUERY SELECT * FROM unnest(wakeups);
    RETURN QUERY SELECT * FROM howdah.route(routed);
END $$;

-- Returns the live and the dead parents of these jobs, and gives them the mark `coordinated`, so that the transaction that ends
-- a parent looks for dependents.
CREATE OR REPLACE FUNCTION howdah.mark_parents(of_bulk bigint, ids bigint[], OUT live bigint[], OUT dead_ones bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    parents bigint[];
    lowest bigint;
    highest bigint;
BEGIN
    SELECT min(i), max(i) INTO lowest, highest FROM unnest(ids) i;
    SELECT array_agg(DISTINCT p) INTO parents FROM howdah.bulk_change c CROSS JOIN LATERAL unnest(c.after_ids) p
    WHERE c.bulk_id = of_bulk AND c.undone IS NULL AND c.job_id >= lowest AND c.job_id <= highest AND c.job_id = ANY (ids);
    IF parents IS NOT NULL THEN
        WITH marked AS (
            UPDATE howdah.dead x SET options = coalesce(x.options, '{}') || '{"coordinated": true}' WHERE x.id = ANY (parents) RETURNING x.id)
        SELECT array_agg(m.id) INTO dead_ones FROM marked m;
        live := howdah.mark_coordinated(parents, '{"coordinated": true}');
    END IF;
    live := coalesce(live, '{}');
    dead_ones := coalesce(dead_ones, '{}');
END $$;

-- Decides which of these locked jobs are restored, and gives those jobs their keys and dependencies. A job is restored only if
-- it can return to its former state: its key is free, and its parents are unfinished or have succeeded. So parents are decided
-- before their dependents. refused_ids, problems: the jobs that are not restored, and why. unqueued: restored jobs that are no
-- longer the successor for a key.
CREATE OR REPLACE FUNCTION howdah.decide_undo(of_bulk bigint, ids bigint[], OUT restored_ids bigint[], OUT unqueued bigint[],
                                              OUT refused_ids bigint[], OUT problems text[]) LANGUAGE plpgsql AS $$
DECLARE
    parents record := howdah.mark_parents(of_bulk, ids);
    live bigint[] := parents.live;              -- parents that have not ended, and restored jobs that are not dead
    dead_ones bigint[] := parents.dead_ones;    -- dead parents, and restored jobs that are dead
    lowest bigint := (SELECT min(i) FROM unnest(ids) i);
    highest bigint := (SELECT max(i) FROM unnest(ids) i);
    todo bigint[] := ids;
    later bigint[];
    problem text;
    parent bigint;
    on_failure text;
    r record;
BEGIN
    restored_ids := '{}'; unqueued := '{}'; refused_ids := '{}'; problems := '{}';
    LOOP
        later := '{}';
        FOR r IN
            SELECT c, c.job_id, c.state, h.options, h.key, CASE WHEN c.state = 'leased' THEN h.attempt - 1 ELSE h.attempt END AS attempt,
                   coalesce((h.options ->> 'key_type')::integer, h.type_id) AS key_type
            FROM howdah.bulk_change c
            LEFT JOIN LATERAL (SELECT o.* FROM howdah.history o WHERE o.id = c.job_id AND o.finished = c.changed LIMIT 1) h ON true
            WHERE c.bulk_id = of_bulk AND c.undone IS NULL AND c.job_id >= lowest AND c.job_id <= highest AND c.job_id = ANY (todo) ORDER BY c.job_id
        LOOP
            problem := CASE WHEN r.attempt IS NULL THEN 'its history has been dropped' ELSE howdah.why_not_restored(r.c, r.options, r.attempt) END;
            on_failure := coalesce(r.options ->> 'on_dependency_failure', 'cancel');
            IF problem IS NULL AND (r.c).after_ids IS NOT NULL THEN
                -- A parent of this job is not decided yet and may be restored, so decide about this job in a later iteration.
                IF EXISTS (SELECT FROM unnest((r.c).after_ids) p WHERE p = ANY (todo) AND p <> ALL (restored_ids) AND p <> ALL (refused_ids)) THEN
                    later := later || r.job_id;
                    CONTINUE;
                END IF;
                parent := howdah.blocking_parent(r.c, on_failure, live, dead_ones);
                problem := CASE WHEN parent IS NOT NULL THEN format('it depends on job %s, which is not known to have succeeded', parent) END;
            END IF;
            IF problem IS NULL AND r.key IS NOT NULL AND r.state <> 'dead' THEN
                problem := nullif(howdah.restore_key(r.c, r.key_type, r.key, (r.options ->> 'queued_behind')::bigint, restored_ids), '');
                unqueued := unqueued || CASE WHEN problem IS NULL AND r.options ? 'queued_behind' THEN ARRAY[r.job_id] END;
                problem := nullif(problem, 'queued');
            END IF;
            IF problem IS NOT NULL THEN
                refused_ids := refused_ids || r.job_id;
                problems := problems || problem;
                CONTINUE;
            END IF;
            INSERT INTO howdah.dependency (after_id, job_id)
            SELECT p, r.job_id FROM unnest((r.c).after_ids) p
            WHERE p = ANY (live) OR p = ANY (dead_ones) AND on_failure = 'wait' ON CONFLICT DO NOTHING;
            restored_ids := restored_ids || r.job_id;
            dead_ones := dead_ones || CASE WHEN r.state = 'dead' THEN ARRAY[r.job_id] END;
            live := live || CASE WHEN r.state <> 'dead' THEN ARRAY[r.job_id] END;
        END LOOP;
        EXIT WHEN cardinality(later) IN (0, cardinality(todo));
        todo := later;
    END LOOP;
    refused_ids := refused_ids || later;
    problems := problems || array_fill('it depends on a job that was not restored'::text, ARRAY[cardinality(later)]);
END $$;

-- Restores jobs of one type that a bulk operation has ended. Result rows with a kind are wake-ups. A row with a null kind is
-- the result of one job: why it could not be restored; a null problem: it was restored. Jobs are locked before keys, and limit
-- states are locked last.
CREATE OR REPLACE FUNCTION howdah.undo_bulk(of_bulk bigint, of_type integer, ids bigint[])
RETURNS TABLE (kind howdah.wakeup_kind, id bigint, type_id integer, rank bigint, jobs bigint, in_us bigint, problem text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    decided record;
    lowest bigint;
    highest bigint;
BEGIN
    -- Bounds of the ids to read in the journal. Postgres may scan the index in the order of ids; without bounds, each batch
    -- would then read all jobs that the bulk operation has ended.
    SELECT min(i), max(i) INTO lowest, highest FROM unnest(ids) i;
    PERFORM FROM howdah.bulk_change c
    WHERE c.bulk_id = of_bulk AND c.undone IS NULL AND c.job_id >= lowest AND c.job_id <= highest AND c.job_id = ANY (ids) ORDER BY c.job_id FOR UPDATE;
    PERFORM FROM howdah.history h WHERE h.id = ANY (ids) ORDER BY h.id FOR UPDATE;
    IF NOT howdah.use_task_type(of_type) THEN
        RETURN QUERY SELECT NULL::howdah.wakeup_kind, i.id, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, 'its task type has been deleted'
                     FROM unnest(ids) AS i(id);
        RETURN;
    END IF;
    SELECT * INTO decided FROM howdah.decide_undo(of_bulk, ids);
    RETURN QUERY SELECT w.kind, NULL::bigint, w.type_id, w.rank, w.jobs, w.in_us, NULL::text
                 FROM howdah.restore_jobs_of_bulk(of_bulk, decided.restored_ids, decided.unqueued) w;
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, a.id, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, a.problem
                 FROM (SELECT b.id, NULL::text AS problem FROM unnest(decided.restored_ids) AS b(id)
                       UNION ALL SELECT n.id, n.problem FROM unnest(decided.refused_ids, decided.problems) AS n(id, problem)) a;
END $$;
