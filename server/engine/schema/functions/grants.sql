-- Grants: the operations that the role of this session may perform on a task type. Functions with the rights of the owner check
-- session_user, which SET ROLE does not change.

-- Returns whether a pattern matches a task type, like Pattern::matches in server/engine/src/access/scope.rs. A test compares both.
CREATE OR REPLACE FUNCTION howdah.matches(pattern text, task_type text) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN right(pattern, 1) = '*' THEN starts_with(task_type, left(pattern, -1)) ELSE task_type = pattern END;

-- Returns whether this session needs grants: a grant exists, and the role may not act as the owner.
CREATE OR REPLACE FUNCTION howdah.needs_grants() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.grants)
       AND NOT pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = 'howdah.grants'::regclass), 'MEMBER')
$$;

-- Returns whether this session may perform an operation on a task type; null: on at least one task type.
CREATE OR REPLACE FUNCTION howdah.may(operation text, task_type text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT howdah.needs_grants() OR EXISTS (
        SELECT FROM howdah.grants g JOIN pg_roles r ON r.rolname = g.role
        WHERE g.operation = may.operation AND (may.task_type IS NULL OR howdah.matches(g.pattern, may.task_type))
          AND pg_has_role(session_user, r.oid, 'MEMBER'))
$$;

-- Returns whether this session may perform an operation on a task type, given by its id.
CREATE OR REPLACE FUNCTION howdah.may_type(operation text, of_type integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT howdah.may(operation, (SELECT t.name FROM howdah.task_type t WHERE t.id = of_type))
$$;

-- Raises an error if this session may not perform an operation on a task type; null: if it may perform it on no task type.
CREATE OR REPLACE FUNCTION howdah.check_grant(operation text, task_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF howdah.has_grants() AND NOT howdah.may(operation, task_type) THEN
        RAISE EXCEPTION '% needs the scope %:% for this call', to_json(session_user::text), operation, coalesce(task_type, 'TYPES')
            USING ERRCODE = '42501', HINT = format('As the owner: SELECT howdah.grant_types(%L, %L, %L)', session_user, operation,
                                                   coalesce(task_type, 'TYPES'));
    END IF;
END $$;

-- Returns the first job in the option `after` that is unknown to this session: the job does not exist, or the session has no
-- grant for its type and is not a member of howdah_reader. Both cases raise the same error, so the caller does not learn
-- whether the job exists.
CREATE OR REPLACE FUNCTION howdah.unknown_after(cs howdah.checked_job[]) RETURNS TABLE (ordinal bigint, id bigint) LANGUAGE sql STABLE AS $$
    SELECT c.n, e.value::bigint
    FROM unnest(cs) WITH ORDINALITY
             AS c(type_id, rank_base, priority, max_attempts, timeout_ms, key, headers, options, payload, run_at_us, delay_ms, data, n)
    CROSS JOIN LATERAL jsonb_array_elements_text(CASE WHEN c.options ? 'after' THEN c.options -> 'after' ELSE '[]' END) e
    WHERE howdah.needs_grants() AND NOT EXISTS (
        SELECT FROM (SELECT type_id FROM howdah.ready j WHERE j.id = e.value::bigint
                     UNION ALL SELECT type_id FROM howdah.leased j WHERE j.id = e.value::bigint
                     UNION ALL SELECT type_id FROM howdah.scheduled j WHERE j.id = e.value::bigint
                     UNION ALL SELECT type_id FROM howdah.waiting j WHERE j.id = e.value::bigint
                     UNION ALL SELECT type_id FROM howdah.dead j WHERE j.id = e.value::bigint
                     UNION ALL SELECT type_id FROM howdah.history j WHERE j.id = e.value::bigint) j
        WHERE EXISTS (SELECT FROM unnest('{enqueue,work,operate}'::text[]) o WHERE howdah.may_type(o, j.type_id))
           OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'howdah_reader' AND pg_has_role(session_user, r.oid, 'MEMBER')))
    ORDER BY 1, 2 LIMIT 1
$$;

-- Checks that this session may work on the job of a lease. Without that right, the lease is reported as lost, as for an unknown
-- token, so the caller does not learn whether the job exists.
CREATE OR REPLACE FUNCTION howdah.check_lease(job_id bigint, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT howdah.needs_grants() THEN
        RETURN;
    END IF;
    PERFORM howdah.check_grant('work', NULL);
    -- last_token = token XOR 6: the lease ended because the worker was lost, and howdah.regain may restore it.
    IF NOT EXISTS (SELECT FROM howdah.leased l
                   WHERE l.id = job_id AND l.token = check_lease.token AND howdah.may_type('work', l.type_id)
                   UNION ALL SELECT FROM howdah.ready r
                   WHERE r.id = job_id AND r.last_token = check_lease.token # 6 AND howdah.may_type('work', r.type_id)
                   UNION ALL SELECT FROM howdah.waiting w
                   WHERE w.id = job_id AND w.last_token = check_lease.token # 6 AND howdah.may_type('work', w.type_id)
                   UNION ALL SELECT FROM howdah.dead d
                   WHERE d.id = job_id AND d.last_token = check_lease.token # 6 AND howdah.may_type('work', d.type_id)) THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
END $$;

-- Returns the name under which a request key of this session is stored. If grants limit the role, each role has its own request
-- keys, as each principal has over gRPC (RequestKey::name_of). Otherwise all SQL sessions share them, so that an application
-- may repeat a request under another login.
CREATE OR REPLACE FUNCTION howdah.own_request_key(key text) RETURNS text LANGUAGE plpgsql STRICT AS $$
BEGIN
    RETURN CASE WHEN key <> '' AND howdah.has_grants() AND howdah.needs_grants() THEN 'sql:' || session_user || E'\x1f' || key ELSE key END;
END $$;

-- Lets a role perform an operation on task types: the pattern is a name, or a prefix of names followed by *. Only the owner of
-- the tables may call the function.
CREATE OR REPLACE FUNCTION howdah.grant_types(role text, operation text, pattern text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.grants (role, operation, pattern) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM howdah.record_grant('howdah.grant_types', role, operation, pattern);
    END IF;
END $$;

-- Revokes a grant. Returns false if there was no such grant.
CREATE OR REPLACE FUNCTION howdah.revoke_types(role text, operation text, pattern text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM howdah.grants g WHERE g.role = $1 AND g.operation = $2 AND g.pattern = $3;
    IF FOUND THEN
        PERFORM howdah.record_grant('howdah.revoke_types', role, operation, pattern);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- Records a change of a grant in the audit. The pattern is stored as the task type.
CREATE OR REPLACE FUNCTION howdah.record_grant(method text, role text, operation text, pattern text) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.record_by_name(method, ARRAY[pattern], ARRAY[format('%s %s:%s', role, operation, pattern)])
$$;
