-- Grants: what the role of this session may do with a task type. Functions with the rights of the owner ask for session_user,
-- which SET ROLE does not change.

-- Whether a pattern matches a task type, as Pattern::matches in server/src/access/scope.rs. A test compares both.
CREATE OR REPLACE FUNCTION howdah.matches(pattern text, task_type text) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN right(pattern, 1) = '*' THEN starts_with(task_type, left(pattern, -1)) ELSE task_type = pattern END;

-- Whether this session may do only what it is granted.
CREATE OR REPLACE FUNCTION howdah.needs_grants() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.grants)
       AND NOT pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = 'howdah.grants'::regclass), 'MEMBER')
$$;

-- Whether this session may do this with a task type; null: with any task type at all.
CREATE OR REPLACE FUNCTION howdah.may(operation text, task_type text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT howdah.needs_grants() OR EXISTS (
        SELECT FROM howdah.grants g JOIN pg_roles r ON r.rolname = g.role
        WHERE g.operation = may.operation AND (may.task_type IS NULL OR howdah.matches(g.pattern, may.task_type))
          AND pg_has_role(session_user, r.oid, 'MEMBER'))
$$;

-- The same by the number of the task type.
CREATE OR REPLACE FUNCTION howdah.may_type(operation text, of_type integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT howdah.may(operation, (SELECT t.name FROM howdah.task_type t WHERE t.id = of_type))
$$;

-- Refuses the call if this session may not do this with a task type (null: with none at all).
CREATE OR REPLACE FUNCTION howdah.check_grant(operation text, task_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF howdah.has_grants() AND NOT howdah.may(operation, task_type) THEN
        RAISE EXCEPTION '% needs the scope %:% for this call', to_json(session_user::text), operation, coalesce(task_type, 'TYPES')
            USING ERRCODE = '42501', HINT = format('As the owner: SELECT howdah.grant_types(%L, %L, %L)', session_user, operation,
                                                   coalesce(task_type, 'TYPES'));
    END IF;
END $$;

-- The first job that these jobs are to run after and that this session may not know: it is missing, or the session has no grant
-- for its type and is no reader. So who names a foreign job learns nothing of it.
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

-- Checks that this session may work on the job of a lease. A foreign lease is lost for it, like an unknown one.
CREATE OR REPLACE FUNCTION howdah.check_lease(job_id bigint, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT howdah.needs_grants() THEN
        RETURN;
    END IF;
    PERFORM howdah.check_grant('work', NULL);
    IF NOT EXISTS (SELECT FROM howdah.leased l
                   WHERE l.id = job_id AND l.token = check_lease.token AND howdah.may_type('work', l.type_id)) THEN
        PERFORM howdah.lease_lost(job_id);
    END IF;
END $$;

-- The name under which a request key of this session is stored. Where grants limit roles, keys belong to the role, as they
-- belong to the principal over gRPC (RequestKey::name_of); otherwise all of SQL shares them, so that an application may repeat a
-- request under another login.
CREATE OR REPLACE FUNCTION howdah.own_request_key(key text) RETURNS text LANGUAGE plpgsql STRICT AS $$
BEGIN
    RETURN CASE WHEN key <> '' AND howdah.has_grants() AND howdah.needs_grants() THEN 'sql:' || session_user || E'\x1f' || key ELSE key END;
END $$;

-- Lets a role do this with task types: a name, or the beginning of names and *. Only for the owner, like the table.
CREATE OR REPLACE FUNCTION howdah.grant_types(role text, operation text, pattern text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.grants (role, operation, pattern) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM howdah.record_grant('howdah.grant_types', role, operation, pattern);
    END IF;
END $$;

-- Takes that back. False: there was no such grant.
CREATE OR REPLACE FUNCTION howdah.revoke_types(role text, operation text, pattern text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM howdah.grants g WHERE g.role = $1 AND g.operation = $2 AND g.pattern = $3;
    IF FOUND THEN
        PERFORM howdah.record_grant('howdah.revoke_types', role, operation, pattern);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- A change of a grant, in the audit. A pattern stands where task types are.
CREATE OR REPLACE FUNCTION howdah.record_grant(method text, role text, operation text, pattern text) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.record_by_name(method, ARRAY[pattern], ARRAY[format('%s %s:%s', role, operation, pattern)])
$$;
