-- Task types: creation, and deletion of unused types.

-- Creates the task types of these names that do not exist. One principal (creator) may create at most a quarter of the allowed
-- types; creator null: only the total is limited. Both limits are checked against committed rows, so concurrent calls may
-- exceed them by the types that they create. A lock would make all other calls wait for an open transaction.
CREATE OR REPLACE FUNCTION howdah.create_task_types(names text[], creator text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    most integer;
    share integer;
    created integer[];
BEGIN
    -- Sort the names, so that two callers insert them in the same order and do not deadlock.
    WITH made AS (
        INSERT INTO howdah.task_type (name) SELECT DISTINCT n COLLATE "C" FROM unnest(names) n ORDER BY 1 ON CONFLICT (name) DO NOTHING
        RETURNING id)
    SELECT array_agg(made.id) INTO created FROM made;
    IF created IS NOT NULL THEN
        SELECT s.task_types INTO STRICT most FROM howdah.settings s;
        IF (SELECT count(*) FROM howdah.task_type) > most THEN
            RAISE EXCEPTION 'there are already % task types, so % is not created', most, to_json(names[1])
                USING ERRCODE = 'HW004',
                      HINT = 'Use a type that exists, or raise the limit: howdah settings set task_types=N. '
                             'Types that are unused for longer than history is kept are deleted.';
        END IF;
        share := most / 4;
        INSERT INTO howdah.task_type_creator (type_id, principal) SELECT c, creator FROM unnest(created) c WHERE creator IS NOT NULL;
        IF (SELECT count(*) FROM howdah.task_type_creator o WHERE o.principal = creator) > share THEN
            RAISE EXCEPTION '% has created % task types, which is the most for one principal, so % is not created',
                            to_json(creator), share, to_json(names[1])
                USING ERRCODE = 'HW004',
                      HINT = 'Use a type that exists, or raise the limit, of which this is a quarter: '
                             'howdah settings set task_types=N.';
        END IF;
    END IF;
END $$;

-- Records that a type is used, if it is marked as unused. A lock keeps the type from being deleted before the transaction ends.
-- The lock is shared, so that transactions that use the same type do not wait for one another. Returns false if the type was
-- deleted just now.
CREATE OR REPLACE FUNCTION howdah.use_task_type(of_type integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM howdah.task_type t WHERE t.id = of_type FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE howdah.task_type t SET unused_since = now()
    WHERE t.id = (SELECT u.id FROM howdah.task_type u
                  WHERE u.id = of_type AND u.unused_since < now() - interval '1 hour' FOR NO KEY UPDATE SKIP LOCKED);
    RETURN true;
END $$;

-- Returns the types that live jobs name in their options: a fallback, the next stages, the type they came from.
CREATE OR REPLACE FUNCTION howdah.types_in_options() RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT DISTINCT named.id
    FROM (SELECT options FROM howdah.ready WHERE options IS NOT NULL
          UNION ALL SELECT options FROM howdah.leased WHERE options IS NOT NULL
          UNION ALL SELECT options FROM howdah.scheduled WHERE options IS NOT NULL
          UNION ALL SELECT options FROM howdah.waiting WHERE options IS NOT NULL
          UNION ALL SELECT options FROM howdah.dead WHERE options IS NOT NULL) j
    CROSS JOIN LATERAL (
        SELECT (j.options ->> 'fallback')::integer AS id
        UNION ALL SELECT (j.options ->> 'fallback_from')::integer
        UNION ALL SELECT jsonb_array_elements_text(j.options -> 'next_stages')::integer
    ) named
    WHERE named.id IS NOT NULL
$$;

-- Sets unused_since of types that are unused, and clears it for types in use. Then deletes at most this many types that have
-- been unused for this long, and increments the version of the settings, so that brokers reload them. Returns the names of the
-- deleted types.
CREATE OR REPLACE FUNCTION howdah.delete_unused_task_types(after interval, at_most integer) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    changed integer[];
    candidates integer[];
BEGIN
    -- Types whose unused_since is out of date. Only these rows are updated; rows that another transaction has locked are
    -- skipped.
    changed := ARRAY(
        SELECT k.id FROM howdah.task_type k
        WHERE (k.unused_since IS NOT NULL) = (
            k.step_changed IS NOT NULL OR howdah.limits_of(k) <> '{}'
            OR num_nonnulls(k.max_attempts, k.retry_policy, k.history, k.priority_step_us, k.timeout_ms, k.paused,
                            k.max_payload_bytes, k.max_backlog, k.history_days, k.dead_days, k.fallback) > 0
            OR EXISTS (SELECT FROM howdah.ready j WHERE j.type_id = k.id)
            OR EXISTS (SELECT FROM howdah.waiting j WHERE j.type_id = k.id)
            OR EXISTS (SELECT FROM howdah.dead j WHERE j.type_id = k.id)
            OR EXISTS (SELECT FROM howdah.job_key j WHERE j.type_id = k.id)
            OR EXISTS (SELECT FROM howdah.limit_state j WHERE j.type_id = k.id AND j.max_running IS NOT NULL)
            OR k.id IN (SELECT j.type_id FROM howdah.leased j)
            OR k.id IN (SELECT j.type_id FROM howdah.scheduled j)
            OR k.id IN (SELECT f.fallback FROM howdah.task_type f WHERE f.fallback IS NOT NULL)
            OR k.name IN (SELECT s.task_type FROM howdah.schedule s)));
    UPDATE howdah.task_type t SET unused_since = CASE WHEN t.unused_since IS NULL THEN now() END
    WHERE t.id IN (SELECT l.id FROM howdah.task_type l WHERE l.id = ANY (changed) FOR NO KEY UPDATE SKIP LOCKED);

    -- A type that a schedule or the options of a job refer to is kept too. These are read only if a type is to be deleted.
    SELECT array_agg(c.id) INTO candidates
    FROM (SELECT t.id FROM howdah.task_type t
          WHERE t.unused_since < now() - after
            AND t.id NOT IN (SELECT m.type_id FROM howdah.type_move m UNION ALL SELECT a.type_id FROM howdah.type_arrival a)
            AND NOT EXISTS (SELECT FROM howdah.schedule s WHERE position(t.name IN s.template) > 0)
          ORDER BY t.unused_since LIMIT at_most FOR UPDATE SKIP LOCKED) c;
    IF candidates IS NULL THEN
        RETURN;
    END IF;
    candidates := ARRAY(SELECT unnest(candidates) EXCEPT SELECT howdah.types_in_options());
    DELETE FROM howdah.fair_share f WHERE f.type_id = ANY (candidates);
    DELETE FROM howdah.limit_state l WHERE l.type_id = ANY (candidates);
    DELETE FROM howdah.key_version v WHERE v.type_id = ANY (candidates);
    DELETE FROM howdah.limit_change l WHERE l.type_id = ANY (candidates);
    DELETE FROM howdah.statistics o WHERE o.type_id = ANY (candidates);
    DELETE FROM howdah.backlog o WHERE o.type_id = ANY (candidates);
    RETURN QUERY DELETE FROM howdah.task_type t WHERE t.id = ANY (candidates) RETURNING t.name;
    IF FOUND THEN
        UPDATE howdah.settings SET version = version + 1;
    END IF;
END $$;
