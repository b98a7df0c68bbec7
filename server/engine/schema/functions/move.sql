-- Moves jobs to another task type, for a bulk operation. A job keeps its state and its own data; only data that depends on the
-- type is computed again.

-- Locks the given jobs in the order of their ids. Skips jobs of another state or task type.
-- IS TRUE keeps Postgres from using an index that begins with the type, so that it looks up jobs by id.
CREATE OR REPLACE FUNCTION howdah.lock_in_state(ids bigint[], of_state howdah.job_state, of_type integer) RETURNS SETOF howdah.locked_job
LANGUAGE plpgsql AS $$
BEGIN
    IF of_state = 'ready' THEN
        RETURN QUERY SELECT j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL::timestamptz, j.key, j.options
        FROM howdah.ready j WHERE j.id = ANY (ids) AND (j.type_id = of_type) IS TRUE ORDER BY j.id FOR UPDATE;
    ELSIF of_state = 'leased' THEN
        RETURN QUERY SELECT j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL::timestamptz, j.key, j.options
        FROM howdah.leased j WHERE j.id = ANY (ids) AND (j.type_id = of_type) IS TRUE ORDER BY j.id FOR UPDATE;
    ELSIF of_state = 'scheduled' THEN
        RETURN QUERY SELECT j.id, j.attempt, j.max_attempts, j.timeout_ms, j.run_at, j.key, j.options
        FROM howdah.scheduled j WHERE j.id = ANY (ids) AND (j.type_id = of_type) IS TRUE ORDER BY j.id FOR UPDATE;
    ELSIF of_state = 'waiting' THEN
        RETURN QUERY SELECT j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL::timestamptz, j.key, j.options
        FROM howdah.waiting j WHERE j.id = ANY (ids) AND (j.type_id = of_type) IS TRUE ORDER BY j.id FOR UPDATE;
    ELSIF of_state = 'dead' THEN
        RETURN QUERY SELECT j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL::timestamptz, j.key, j.options
        FROM howdah.dead j WHERE j.id = ANY (ids) AND (j.type_id = of_type) IS TRUE ORDER BY j.id FOR UPDATE;
    END IF;
END $$;

-- Moves the keys that these locked jobs hold from one type to another. Returns the jobs whose key cannot move, and why; these
-- jobs must stay in their type. The key of a job in a later stage belongs to the type of its first stage, and stays there.
CREATE OR REPLACE FUNCTION howdah.move_keys(locked howdah.locked_job[], from_type integer, to_type integer, to_name text,
                                            OUT ids bigint[], OUT problems text[]) LANGUAGE plpgsql AS $$
DECLARE
    owners bigint[];
    keys text[];
BEGIN
    SELECT array_agg(f.id ORDER BY f.key, f.id), array_agg(f.key ORDER BY f.key, f.id) INTO owners, keys
    FROM unnest(locked) f WHERE f.key IS NOT NULL AND f.options -> 'key_type' IS NULL;
    ids := '{}';
    IF owners IS NULL THEN
        RETURN;
    END IF;
    -- Locks the keys before any decision, in the order that all functions use: by type and key.
    PERFORM FROM (SELECT DISTINCT t.id AS type_id, k.key COLLATE "C" AS key
                  FROM unnest(ARRAY[from_type, to_type]) AS t(id) CROSS JOIN unnest(keys) AS k(key) ORDER BY 1, 2) n
    CROSS JOIN LATERAL (SELECT FROM howdah.job_key o WHERE o.type_id = n.type_id AND o.key = n.key FOR UPDATE) o;
    WITH held AS MATERIALIZED (
        SELECT e.id, k.*
        FROM unnest(owners, keys) AS e(id, of_key)
        CROSS JOIN LATERAL (SELECT o.* FROM howdah.job_key o WHERE o.type_id = from_type AND o.key = e.of_key OFFSET 0) k
        WHERE e.id IN (k.job_id, k.next_id)
    ),
    taken AS (
        INSERT INTO howdah.job_key AS o (type_id, key, job_id, version, held_until, debounce_until)
        SELECT to_type, h.key, h.id, h.version, h.held_until, h.debounce_until FROM held h WHERE h.next_id IS NULL ORDER BY h.key
        ON CONFLICT (type_id, key) DO UPDATE SET job_id = excluded.job_id, version = excluded.version,
            held_until = excluded.held_until, debounce_until = excluded.debounce_until
        WHERE o.next_id IS NULL AND o.held_until <= now()
        RETURNING o.key
    ),
    freed AS (
        DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
            SELECT k.ctid FROM taken t
            CROSS JOIN LATERAL (SELECT o.ctid FROM howdah.job_key o WHERE o.type_id = from_type AND o.key = t.key OFFSET 0) k))
    )
    SELECT coalesce(array_agg(h.id), '{}'),
           array_agg(CASE WHEN h.next_id = h.id THEN format('it waits for job %s, which holds its key', h.job_id)
                          WHEN h.next_id IS NOT NULL THEN format('job %s waits for its key', h.next_id)
                          ELSE format('job %s holds its key in %s', coalesce(b.job_id::text, '?'), to_name) END)
    INTO ids, problems
    FROM held h LEFT JOIN LATERAL (
        SELECT o.job_id FROM howdah.job_key o WHERE o.type_id = to_type AND o.key = h.key OFFSET 0) b ON true
    WHERE NOT EXISTS (SELECT FROM taken t WHERE t.key = h.key);
END $$;

-- Returns the options of a job after its move to another type. A fallback to this type is removed.
CREATE OR REPLACE FUNCTION howdah.in_type(options jsonb, to_type integer, priority smallint, step bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT howdah.with_step(CASE WHEN options -> 'fallback' = to_jsonb(to_type) THEN nullif(options - 'fallback', '{}') ELSE options END,
                            priority, step)
$$;

-- Changes the task type of locked jobs, which are all in the same state. Jobs with a limit key or a fair key are routed again,
-- because their slot and their rank belong to the type. last_token is cleared, so a late outcome of a lost worker does not
-- count any more. Jobs that wait for another job are updated in place (keys.sql explains why).
CREATE OR REPLACE FUNCTION howdah.put_in_type(ids bigint[], of_state howdah.job_state, to_type integer) RETURNS SETOF howdah.wakeup
LANGUAGE plpgsql AS $$
DECLARE
    step bigint := howdah.rank_step(to_type);
    routed howdah.waiting[];
BEGIN
    RETURN QUERY
    WITH in_ready AS (
        UPDATE howdah.ready SET last_token = NULL, type_id = to_type, rank = howdah.reranked(rank, priority, options, priority, step),
                                options = howdah.in_type(options, to_type, priority, step)
        WHERE of_state = 'ready' AND id = ANY (ids) AND NOT coalesce(options ?| '{limit_key,fair_key}', false) RETURNING rank
    ),
    in_scheduled AS (
        UPDATE howdah.scheduled SET type_id = to_type, rank = howdah.reranked(rank, priority, options, priority, step),
                                    options = howdah.in_type(options, to_type, priority, step)
        WHERE of_state = 'scheduled' AND id = ANY (ids)
    ),
    in_waiting AS (
        UPDATE howdah.waiting SET last_token = NULL, type_id = to_type, rank = howdah.reranked(rank, priority, options, priority, step),
                                  options = howdah.in_type(options, to_type, priority, step)
        WHERE of_state = 'waiting' AND id = ANY (ids) AND limit_key IS NULL
    ),
    in_dead AS (
        UPDATE howdah.dead SET last_token = NULL, type_id = to_type, rank = howdah.reranked(rank, priority, options, priority, step),
                               options = howdah.in_type(options, to_type, priority, step)
        WHERE of_state = 'dead' AND id = ANY (ids)
    )
    SELECT 'ready'::howdah.wakeup_kind, to_type, min(r.rank), count(*), NULL::bigint FROM in_ready r HAVING count(*) > 0;

    WITH from_ready AS (
        DELETE FROM howdah.ready WHERE of_state = 'ready' AND id = ANY (ids) AND options ?| '{limit_key,fair_key}' RETURNING *
    ),
    from_waiting AS (
        DELETE FROM howdah.waiting WHERE of_state = 'waiting' AND id = ANY (ids) AND limit_key IS NOT NULL RETURNING *
    ),
    deleted AS (
        SELECT id, rank, created, timeout_ms, attempt, max_attempts, priority, key, headers, options, failures, payload
        FROM from_ready
        UNION ALL SELECT id, rank, created, timeout_ms, attempt, max_attempts, priority, key, headers, options, failures, payload
        FROM from_waiting
    )
    SELECT array_agg(ROW(d.id, howdah.reranked(d.rank, d.priority, d.options, d.priority, step), d.created, d.timeout_ms, NULL,
                         to_type, d.attempt, d.max_attempts, d.priority, d.key, NULL, d.headers,
                         howdah.in_type(d.options, to_type, d.priority, step), d.failures, d.payload)::howdah.waiting)
    INTO routed FROM deleted d;
    RETURN QUERY SELECT * FROM howdah.route(routed);
END $$;

-- Moves jobs of one type and state to another type. Result rows with a kind are wake-ups. A row with a null kind is the result
-- of one job: the reason why it was not moved; a null problem: it was moved. A job that has left the state has no row. Jobs are
-- locked before keys, and limit states last. A moved job counts as enqueued in its new type, like a job that goes to its
-- fallback.
CREATE OR REPLACE FUNCTION howdah.move_jobs(ids bigint[], of_state howdah.job_state, from_type integer, to_name text)
RETURNS TABLE (kind howdah.wakeup_kind, id bigint, type_id integer, rank bigint, jobs bigint, in_us bigint, problem text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    to_type integer := (SELECT t.id FROM howdah.task_type t WHERE t.name = to_name);
    locked howdah.locked_job[];
    kept record;
    able bigint[];
    limit_keys text[];
BEGIN
    IF NOT howdah.use_task_type(to_type) THEN
        RETURN QUERY SELECT NULL::howdah.wakeup_kind, i.id, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint,
                            format('the task type %s has been deleted meanwhile; start the operation again', to_name)
                     FROM unnest(ids) AS i(id);
        RETURN;
    END IF;
    locked := ARRAY(SELECT l FROM howdah.lock_in_state(ids, of_state, from_type) l);
    SELECT * INTO kept FROM howdah.move_keys(locked, from_type, to_type, to_name);
    able := ARRAY(SELECT f.id FROM unnest(locked) f WHERE f.id <> ALL (kept.ids) ORDER BY f.id);
    RETURN QUERY SELECT w.kind, NULL::bigint, w.type_id, w.rank, w.jobs, w.in_us, NULL::text
                 FROM howdah.put_in_type(able, of_state, to_type) w;
    PERFORM howdah.index_tags(f.id, to_type, f.options) FROM unnest(locked) f WHERE f.options ? 'tags' AND f.id = ANY (able);
    PERFORM howdah.count_enqueued(array_fill(to_type, ARRAY[cardinality(able)]));
    -- Limit keys of the former type whose slots the moved jobs gave up. Other jobs may take these slots.
    limit_keys := ARRAY(SELECT f.options ->> 'limit_key' FROM unnest(locked) f
                        WHERE of_state <> 'dead' AND f.options -> 'limit_key' IS NOT NULL AND f.id = ANY (able));
    IF cardinality(limit_keys) > 0 AND howdah.recheck_limits(array_fill(from_type, ARRAY[cardinality(limit_keys)]), limit_keys) THEN
        RETURN QUERY SELECT 'limit'::howdah.wakeup_kind, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text;
    END IF;
    RETURN QUERY SELECT NULL::howdah.wakeup_kind, a.id, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, a.problem
                 FROM (SELECT b.id, NULL::text AS problem FROM unnest(able) AS b(id)
                       UNION ALL SELECT n.id, n.problem FROM unnest(kept.ids, kept.problems) AS n(id, problem)) a;
END $$;
