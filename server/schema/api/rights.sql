-- Rights. PUBLIC has none; roles are created on request (howdah migrate --roles).

-- Creates the roles howdah_producer, howdah_worker and howdah_reader, if they do not exist and the caller may, and grants
-- them their rights in this schema. Roles belong to the whole database cluster, so another database may have created them.
-- Returns the roles that have their rights now.
CREATE OR REPLACE FUNCTION howdah.create_roles() RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    called text;
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
        FOR called IN
            SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = pg_catalog.to_regnamespace(rtrim('howdah.', '.')) AND p.proname = ANY (CASE name
                WHEN 'howdah_producer' THEN ARRAY['enqueue', 'enqueue_plain', 'enqueue_fair', 'enqueue_any', 'enqueue_many', 'enqueue_batch', 'cancel', 'retry_now', 'end_lease', 'reprioritize', 'on_change', 'enqueue_change',
                                               'enqueue_changed']
                WHEN 'howdah_worker' THEN ARRAY['complete', 'fail', 'snooze', 'extend']
                ELSE ARRAY['payload_of', 'payload_size', 'error_group', 'original_type', 'coordination_of', 'limits_of', 'step_of', 'store_of',
                           'store_number', 'ids_of_a_store'] END)
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I', called, name);
        END LOOP;
        IF name = 'howdah_reader' THEN
            EXECUTE pg_catalog.format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO %I', rtrim('howdah.', '.'), name);
            -- But no token of a lease (who has it may settle the job), no key, and nothing that names people.
            EXECUTE pg_catalog.format('REVOKE SELECT ON howdah.leased, howdah.settings, howdah.type_move, howdah.leaving_schedule, howdah.secret, howdah.token, howdah.revoked_jwt, howdah.task_type_creator, howdah.schedule_creator, howdah.worker, howdah.audit, howdah.bulk, %s FROM %I', (
                SELECT string_agg(i.inhrelid::regclass::text, ', ') FROM pg_catalog.pg_inherits i
                WHERE i.inhparent = 'howdah.audit'::regclass), name);
            EXECUTE pg_catalog.format('GRANT SELECT (%s) ON howdah.leased TO %I', (
                SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = 'howdah.leased'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'token'), name);
            EXECUTE pg_catalog.format('GRANT SELECT (%s) ON howdah.settings TO %I', (
                SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = 'howdah.settings'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'closed_by'), name);
        END IF;
        RETURN NEXT name;
    END LOOP;
END $$;

-- Takes the right to execute from PUBLIC, which Postgres grants for every new function. Only for functions of this
-- transaction: the schema may have others that are not Howdah's.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = to_regnamespace(rtrim('howdah.', '.'))
                                           AND p.xmin::text = (txid_current() % 4294967296)::text LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
    -- New functions, and functions with new arguments, have no grants yet.
    IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('howdah_producer', 'howdah_worker', 'howdah_reader')
               AND has_schema_privilege(r.oid, rtrim('howdah.', '.'), 'USAGE') AND NOT r.rolsuper) THEN
        PERFORM howdah.create_roles();
    END IF;
END $$;
