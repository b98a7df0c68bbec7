-- Functions for the source store of a task type that moves to another store. Each is one idempotent transaction, so it can be
-- repeated after a crash.

-- Returns whether a job may move to another store. Jobs with relations to other jobs or callers stay: with a limit key,
-- dependents, dependencies, stages or waiting callers, or as the successor for a key. options may be malformed, because roles
-- with SQL access may have written them.
CREATE OR REPLACE FUNCTION howdah.may_leave(options jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN options IS NULL OR NOT options ?| '{coordinated,limit_key,queued_behind,after,next_stages,completed_stages,key_type}'::text[];

-- Begins or continues the move of a task type to another store, and makes this broker the owner of the move. Returns the
-- version of the settings, the target store, and the name of another live broker that owns the move. Changes nothing if another
-- live broker owns the move, or if the move has another target.
CREATE OR REPLACE FUNCTION howdah.begin_move(of_type integer, store_name text, store_number integer, by_whom text, of_broker integer)
RETURNS TABLE (version bigint, to_name text, owner text, is_new boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    m howdah.type_move;
    other text;
    made boolean;
BEGIN
    INSERT INTO howdah.type_move (type_id, to_name, to_number, started_by) VALUES (of_type, store_name, store_number, by_whom)
    ON CONFLICT DO NOTHING;
    made := FOUND;
    SELECT * INTO STRICT m FROM howdah.type_move t WHERE t.type_id = of_type FOR UPDATE;
    SELECT b.name INTO other FROM howdah.broker b WHERE b.id = m.owner AND b.id <> of_broker AND b.expires > now();
    IF other IS NULL AND m.to_number = store_number THEN
        UPDATE howdah.type_move t SET owner = of_broker WHERE t.type_id = of_type;
        UPDATE howdah.settings s SET version = s.version + 1;
    END IF;
    RETURN QUERY SELECT s.version, m.to_name, other, made FROM howdah.settings s;
END $$;

-- Moves jobs of a type from the table of one state into the table leaving: the next jobs after a position, up to a number of
-- jobs and of payload bytes. Skips locked jobs, which a later call moves. Only the broker that owns the move may call it; the
-- row of the move stays locked until this transaction ends.
CREATE OR REPLACE FUNCTION howdah.leave_jobs(of_type integer, of_state text, after_position bigint, after_id bigint, at_most integer,
                                             most_bytes bigint, of_broker integer)
RETURNS TABLE (id bigint, sort_position bigint, job jsonb, payload bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    taken jsonb[];
    payloads bytea[];
BEGIN
    PERFORM FROM howdah.type_move m WHERE m.type_id = of_type AND m.owner = of_broker FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this broker does not own the move of the task type with id %', of_type USING ERRCODE = '55000';
    END IF;
    IF of_state = 'ready' THEN
        WITH picked AS MATERIALIZED (
            SELECT l.ctid, l.size, sum(l.size) OVER (ROWS UNBOUNDED PRECEDING) AS through
            FROM (SELECT r.ctid, howdah.payload_size(r.payload, r.options) + 512 AS size FROM howdah.ready r
                  WHERE r.type_id = of_type AND (r.rank, r.id) > (after_position, after_id) AND howdah.may_leave(r.options)
                  ORDER BY r.rank, r.id LIMIT at_most FOR UPDATE SKIP LOCKED) l
        ),
        gone AS (
            DELETE FROM howdah.ready WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM picked p WHERE p.through - p.size < most_bytes))
            RETURNING *
        )
        SELECT array_agg(to_jsonb(g) - 'payload' || jsonb_build_object('state', of_state, 'sort_position', g.rank) ORDER BY g.rank, g.id),
               array_agg(howdah.payload_of(g.id, g.payload, g.options) ORDER BY g.rank, g.id)
        INTO taken, payloads FROM gone g;
    ELSIF of_state = 'scheduled' THEN
        WITH picked AS MATERIALIZED (
            SELECT l.ctid, l.size, sum(l.size) OVER (ROWS UNBOUNDED PRECEDING) AS through
            FROM (SELECT r.ctid, howdah.payload_size(r.payload, r.options) + 512 AS size FROM howdah.scheduled r
                  WHERE (r.run_at, r.id) > (to_timestamp(after_position / 1000000.0), after_id) AND r.type_id = of_type
                    AND howdah.may_leave(r.options)
                  ORDER BY r.run_at, r.id LIMIT at_most FOR UPDATE SKIP LOCKED) l
        ),
        gone AS (
            DELETE FROM howdah.scheduled WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM picked p WHERE p.through - p.size < most_bytes))
            RETURNING *
        )
        SELECT array_agg(to_jsonb(g) - 'payload' || jsonb_build_object(
                             'state', of_state, 'sort_position', (extract(epoch FROM g.run_at) * 1000000)::bigint) ORDER BY g.run_at, g.id),
               array_agg(howdah.payload_of(g.id, g.payload, g.options) ORDER BY g.run_at, g.id)
        INTO taken, payloads FROM gone g;
    ELSE
        WITH picked AS MATERIALIZED (
            SELECT l.ctid, l.size, sum(l.size) OVER (ROWS UNBOUNDED PRECEDING) AS through
            FROM (SELECT r.ctid, howdah.payload_size(r.payload, r.options) + 512 AS size FROM howdah.dead r
                  WHERE r.type_id = of_type AND r.id > after_id AND howdah.may_leave(r.options)
                  ORDER BY r.id LIMIT at_most FOR UPDATE SKIP LOCKED) l
        ),
        gone AS (
            DELETE FROM howdah.dead WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM picked p WHERE p.through - p.size < most_bytes))
            RETURNING *
        )
        SELECT array_agg(to_jsonb(g) - 'payload' || jsonb_build_object('state', of_state, 'sort_position', 0) ORDER BY g.id),
               array_agg(howdah.payload_of(g.id, g.payload, g.options) ORDER BY g.id)
        INTO taken, payloads FROM gone g;
    END IF;
    IF taken IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH stored AS (
        INSERT INTO howdah.leaving (id, type_id, job, payload)
        SELECT (t.job ->> 'id')::bigint, of_type, howdah.with_names(t.job), t.payload FROM unnest(taken, payloads) AS t(job, payload)
        RETURNING leaving.id, leaving.job, leaving.payload
    )
    SELECT s.id, (s.job ->> 'sort_position')::bigint, s.job, s.payload FROM stored s ORDER BY 2, 1;
END $$;

-- Adds data that the target store cannot look up to the row of a leaving job: the names of the types in its options, and the
-- row of its key.
CREATE OR REPLACE FUNCTION howdah.with_names(job jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT job || jsonb_strip_nulls(jsonb_build_object(
        'fallback', (SELECT t.name FROM howdah.task_type t WHERE t.id = (job -> 'options' ->> 'fallback')::integer),
        'fallback_from', (SELECT t.name FROM howdah.task_type t WHERE t.id = (job -> 'options' ->> 'fallback_from')::integer),
        'key_row', (SELECT jsonb_build_object('version', k.version, 'held_until', k.held_until,
                                                  'debounce_until', k.debounce_until) FROM howdah.job_key k
                    WHERE k.type_id = (job ->> 'type_id')::integer AND k.key = job ->> 'key' AND k.job_id = (job ->> 'id')::bigint)))
$$;

-- Ends the transit of jobs. Jobs with a new id have moved. The other jobs return to their former tables: the other store could
-- not take them, because a job there holds their key. Returns the number of moved jobs.
CREATE OR REPLACE FUNCTION howdah.leave_done(of_type integer, old_ids bigint[], new_ids bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    returned howdah.leaving[];
    done bigint;
BEGIN
    WITH gone AS (DELETE FROM howdah.leaving l WHERE l.id = ANY (old_ids) RETURNING *),
    known AS (SELECT g AS row, u.new_id FROM gone g JOIN unnest(old_ids, new_ids) AS u(old_id, new_id) ON u.old_id = g.id),
    recorded AS (
        INSERT INTO howdah.moved (old_id, new_id) SELECT (k.row).id, k.new_id FROM known k WHERE k.new_id IS NOT NULL
        ON CONFLICT DO NOTHING
    ),
    unkeyed AS (
        DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
            SELECT j.ctid FROM known k CROSS JOIN LATERAL (
                SELECT o.ctid FROM howdah.job_key o
                WHERE o.type_id = of_type AND o.key = (k.row).job ->> 'key' AND o.job_id = (k.row).id OFFSET 0) j
            WHERE k.new_id IS NOT NULL AND (k.row).job ->> 'key' IS NOT NULL))
    )
    SELECT array_agg(k.row) FILTER (WHERE k.new_id IS NULL), count(*) FILTER (WHERE k.new_id IS NOT NULL) INTO returned, done FROM known k;
    PERFORM howdah.store_moved(ARRAY(SELECT (b).id FROM unnest(returned) b), of_type, ARRAY(SELECT (b).job FROM unnest(returned) b),
                               ARRAY(SELECT (b).payload FROM unnest(returned) b));
    RETURN done;
END $$;

-- Counts the jobs of a moving type that are still in this store: running jobs that may move later, jobs that stay (with the
-- first ten ids), and jobs in transit.
CREATE OR REPLACE FUNCTION howdah.left_to_move(of_type integer, most integer)
RETURNS TABLE (running bigint, staying bigint, first_ids bigint[], leaving bigint) LANGUAGE sql STABLE AS $$
    WITH stay AS MATERIALIZED (
        (SELECT r.id FROM howdah.waiting r WHERE r.type_id = of_type LIMIT most)
        UNION ALL (SELECT r.id FROM howdah.ready r WHERE r.type_id = of_type LIMIT most)
        UNION ALL (SELECT r.id FROM howdah.scheduled r WHERE r.type_id = of_type AND NOT howdah.may_leave(r.options) LIMIT most)
    )
    SELECT (SELECT count(*) FROM howdah.leased l WHERE l.type_id = of_type AND howdah.may_leave(l.options)),
           (SELECT least(count(*), most) FROM stay),
           ARRAY(SELECT s.id FROM stay s ORDER BY s.id LIMIT 10),
           (SELECT count(*) FROM howdah.leaving l WHERE l.type_id = of_type)
$$;

-- Ends the move of a task type. Returns the new version of the settings.
CREATE OR REPLACE FUNCTION howdah.end_move(of_type integer, of_broker integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    DELETE FROM howdah.type_move m WHERE m.type_id = of_type AND m.owner = of_broker;
    -- A repeated call finds no row to delete, because the move has already ended. The repeated call succeeds too.
    IF EXISTS (SELECT FROM howdah.type_move m WHERE m.type_id = of_type) OR EXISTS (SELECT FROM howdah.leaving l WHERE l.type_id = of_type) THEN
        RAISE EXCEPTION 'this broker does not own the move of the task type with id %, or some of its jobs are still in transit', of_type
            USING ERRCODE = '55000';
    END IF;
    UPDATE howdah.settings s SET version = s.version + 1 RETURNING s.version INTO new_version;
    RETURN new_version;
END $$;

-- Moves the schedules of a type into leaving_schedule, and returns all schedules of the type there. The jobs of the type have
-- moved before, so the ids of jobs in the schedules are replaced by the new ids.
CREATE OR REPLACE FUNCTION howdah.leave_schedules(of_name text) RETURNS SETOF jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.leaving_schedule (name, task_type, schedule)
    SELECT s.name, s.task_type, to_jsonb(s) || jsonb_build_object(
        'job_ids', ARRAY(SELECT coalesce((SELECT m.new_id FROM howdah.moved m WHERE m.old_id = j.id), j.id) FROM unnest(s.job_ids) AS j(id)),
        'last_job_id', coalesce((SELECT m.new_id FROM howdah.moved m WHERE m.old_id = s.last_job_id), s.last_job_id),
        'creator', (SELECT c.principal FROM howdah.schedule_creator c WHERE c.name = s.name))
    FROM howdah.schedule s WHERE s.task_type = of_name ORDER BY s.name FOR UPDATE;
    DELETE FROM howdah.schedule s USING howdah.leaving_schedule l WHERE s.name = l.name AND s.task_type = of_name;
    RETURN QUERY SELECT l.schedule FROM howdah.leaving_schedule l WHERE l.task_type = of_name;
END $$;

-- Ends the transit of schedules. The schedules in `moved` have moved. The others of the type return, because the other store
-- has a schedule of the same name.
CREATE OR REPLACE FUNCTION howdah.leave_schedules_done(of_name text, moved text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM howdah.leaving_schedule l WHERE l.name = ANY (moved);
    PERFORM howdah.store_schedules(ARRAY(SELECT l.schedule FROM howdah.leaving_schedule l WHERE l.task_type = of_name));
    DELETE FROM howdah.leaving_schedule l WHERE l.task_type = of_name;
END $$;
