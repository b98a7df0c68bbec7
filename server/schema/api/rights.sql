-- Rights of roles on functions and tables. PUBLIC has no rights. Rights that an operator grants to other roles stay, and are
-- reported (howdah migrate, howdah doctor).

-- Returns the schema, and Howdah's functions, tables, views and sequences in it, partitions included. kind is the keyword for
-- GRANT and ALTER, such as TABLE. Text in double braces is the list of Howdah's objects, generated from the files of the schema
-- (server/src/store/schema.rs), because the schema may also contain objects of others.
CREATE OR REPLACE FUNCTION howdah.own_objects()
RETURNS TABLE (kind text, id oid, name name, is_partition boolean, owner oid, is_owned boolean, acl aclitem[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'FUNCTION', p.oid, p.proname, false, p.proowner, false, coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(rtrim('howdah.', '.')) AND p.proname = ANY ('{{{own_functions}}}'::name[])
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid, c.relname, c.relispartition, c.relowner,
           -- The sequence of an identity column has the owner of its table.
           c.relkind = 'S' AND EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i'),
           coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))
    FROM pg_class c
    WHERE c.relnamespace = to_regnamespace(rtrim('howdah.', '.')) AND c.relkind IN ('r', 'p', 'v', 'S')
      AND c.relname ~ '^({{own_relations}})(_[0-9]+|_default|_id_seq)?$'
    UNION ALL
    -- An administrator may own the schema.
    SELECT 'SCHEMA', n.oid, n.nspname, false, n.nspowner, true, coalesce(n.nspacl, acldefault('n', n.nspowner))
    FROM pg_namespace n WHERE n.oid = to_regnamespace(rtrim('howdah.', '.'))
$$;

-- Returns differences from the intended rights: rights that a role should not have, or lacks, and objects whose owner is not
-- the owner of the tables. statement corrects the difference. is_foreign: the role is not one of Howdah's. is_meant: one of
-- Howdah's roles is to have this right, so it may have been granted to this role on purpose. may_change: this session may run
-- the statement.
CREATE OR REPLACE FUNCTION howdah.wrong_rights()
RETURNS TABLE (id oid, called text, role text, privilege text, is_foreign boolean, is_meant boolean, may_change boolean, statement text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH owner AS MATERIALIZED (SELECT c.relowner AS id FROM pg_class c WHERE c.oid = 'howdah.schema_part'::regclass),
    object AS MATERIALIZED (SELECT o.*, pg_has_role(o.owner, 'USAGE') AS may_change FROM howdah.own_objects() o),
    -- The rights of the three roles. column_name is empty for a right on the whole object.
    intended AS MATERIALIZED (
        SELECT i.*, r.oid AS role_id
        FROM (
            SELECT f.role, o.id, '' AS column_name, 'EXECUTE' AS privilege
            FROM (VALUES
                ('howdah_producer'::name, '{enqueue,enqueue_plain,enqueue_fair,enqueue_any,enqueue_many,enqueue_batch,cancel,retry_now,end_lease,reprioritize,on_change,enqueue_change,enqueue_changed}'::name[]),
                ('howdah_worker', '{complete,fail,snooze,extend}'),
                ('howdah_reader', '{payload_of,payload_size,error_group,original_type,coordination_of,limits_of,step_of,store_of,store_number,ids_of_a_store}')
            ) f(role, functions)
            JOIN object o ON o.kind = 'FUNCTION' AND o.name = ANY (f.functions)
            UNION ALL
            -- Readers see no tokens of leases (with a token a client can settle the job), no secret keys, and no tables that
            -- contain names of people, such as principals. Request keys may contain such names too.
            SELECT 'howdah_reader', o.id, '', 'SELECT' FROM object o
            WHERE o.kind = 'TABLE' AND NOT o.is_partition AND o.name <> ALL (
                '{leased,settings,type_move,leaving_schedule,secret,token,revoked_jwt,task_type_creator,schedule_creator,worker,request,ended_session,audit,bulk}'::name[])
            UNION ALL
            SELECT 'howdah_reader', a.attrelid, quote_ident(a.attname), 'SELECT' FROM pg_attribute a
            WHERE a.attrelid IN ('howdah.leased'::regclass, 'howdah.settings'::regclass) AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attname NOT IN ('token', 'closed_by')
        ) i LEFT JOIN pg_roles r ON r.rolname = i.role
    ),
    actual AS MATERIALIZED (
        SELECT o.id, '' AS column_name, a.grantee, a.privilege_type AS privilege
        FROM object o CROSS JOIN LATERAL aclexplode(o.acl) a
        -- Of rights on the schema only CREATE is checked: with it, a role could add overloads of functions that the owner
        -- calls. USAGE alone gives access to no object.
        WHERE a.grantee NOT IN (o.owner, (SELECT w.id FROM owner w)) AND (o.kind <> 'SCHEMA' OR a.privilege_type = 'CREATE')
        UNION
        SELECT o.id, quote_ident(t.attname), a.grantee, a.privilege_type
        FROM object o JOIN pg_attribute t ON t.attrelid = o.id AND o.kind = 'TABLE' AND t.attacl IS NOT NULL
        CROSS JOIN LATERAL aclexplode(t.attacl) a WHERE a.grantee NOT IN (o.owner, (SELECT w.id FROM owner w))
    )
    SELECT w.id, n.called, w.role, w.privilege, w.is_foreign, w.is_meant, w.may_change,
           CASE w.verb
               WHEN 'ALTER' THEN format('ALTER %s %s OWNER TO %I', w.kind, n.called, (SELECT pg_get_userbyid(o.id) FROM owner o))
               ELSE format('%s %s%s ON %s %s %s %s', w.verb, w.privilege, ' (' || nullif(w.column_name, '') || ')', w.kind, n.called,
                           CASE w.verb WHEN 'GRANT' THEN 'TO' ELSE 'FROM' END, w.role) || CASE w.verb WHEN 'REVOKE' THEN ' CASCADE' ELSE '' END
           END
    FROM (
        SELECT x.verb, o.kind, o.id, x.column_name, x.privilege, x.role, x.is_foreign OR o.kind = 'SCHEMA' AS is_foreign, x.is_meant, o.may_change
        FROM (
            SELECT 'REVOKE' AS verb, a.id, a.column_name, a.privilege, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role,
                   a.grantee <> 0 AND NOT EXISTS (SELECT FROM intended i WHERE i.role_id = a.grantee) AS is_foreign,
                   EXISTS (SELECT FROM intended i WHERE i.id = a.id AND i.column_name IN (a.column_name, '') AND i.privilege = a.privilege) AS is_meant
            FROM actual a
            WHERE NOT EXISTS (SELECT FROM intended i WHERE i.id = a.id AND i.column_name = a.column_name AND i.privilege = a.privilege AND i.role_id = a.grantee)
            UNION ALL
            SELECT 'GRANT', i.id, i.column_name, i.privilege, quote_ident(i.role), false, true
            FROM intended i
            -- A role without a grant on the schema has no rights in it (howdah migrate --roles).
            WHERE i.role_id IN (SELECT a.grantee FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
                                WHERE n.oid = to_regnamespace(rtrim('howdah.', '.')) AND a.privilege_type = 'USAGE')
              AND NOT EXISTS (SELECT FROM actual a WHERE a.id = i.id AND a.column_name = i.column_name AND a.privilege = i.privilege AND a.grantee = i.role_id)
        ) x JOIN object o ON o.id = x.id
        UNION ALL
        SELECT 'ALTER', o.kind, o.id, '', 'OWNER', quote_ident(pg_get_userbyid(o.owner)), false, false, o.may_change AND pg_has_role(w.id, 'MEMBER')
        FROM object o CROSS JOIN owner w WHERE o.owner <> w.id AND NOT o.is_owned
    ) w CROSS JOIN LATERAL (
        -- The name is computed here, only for objects with a difference, because it is slow for hundreds of functions.
        SELECT CASE w.kind WHEN 'FUNCTION' THEN w.id::regprocedure::text WHEN 'TABLE' THEN w.id::regclass::text WHEN 'SEQUENCE' THEN w.id::regclass::text
                           ELSE (SELECT quote_ident(s.nspname) FROM pg_namespace s WHERE s.oid = w.id) END AS called
    ) n
$$;

-- Sets the rights of PUBLIC and of Howdah's roles, and the owners of objects. On new objects it also revokes rights of other
-- roles, because these rights come from default privileges. Skips changes that this session may not make. Returns the number of
-- changed objects.
CREATE OR REPLACE FUNCTION howdah.set_rights(new_objects oid[]) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w record;
    changed oid[] := '{}';
BEGIN
    -- A second round corrects the effects of the first one: REVOKE on a table also removes rights on its columns, and a new
    -- owner gets rights that the former owner had granted to itself.
    FOR round IN 1..2 LOOP
        FOR w IN SELECT * FROM howdah.wrong_rights() r WHERE r.may_change AND (NOT r.is_foreign OR r.id = ANY (new_objects)) LOOP
            EXECUTE w.statement;
            changed := changed || w.id;
        END LOOP;
    END LOOP;
    RETURN (SELECT count(DISTINCT c) FROM unnest(changed) c);
END $$;

-- Creates the roles howdah_producer, howdah_worker and howdah_reader if they do not exist and the caller may, and grants their
-- rights in this schema. Roles belong to the whole database cluster, so another database may have created them. Returns the
-- roles that have their rights now.
CREATE OR REPLACE FUNCTION howdah.create_roles() RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['howdah_producer', 'howdah_worker', 'howdah_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', name);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- Another database has just created it.
            WHEN insufficient_privilege THEN
                RAISE WARNING 'role % does not exist, and % may not create it', name, current_user
                    USING HINT = 'Run CREATE ROLE ' || name || ' NOLOGIN as a role with CREATEROLE; then repeat this command.';
                CONTINUE;
        END;
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %s TO %I', rtrim('howdah.', '.'), name);
        RETURN NEXT name;
    END LOOP;
    PERFORM howdah.set_rights('{}');
END $$;
