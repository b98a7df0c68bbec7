-- Enqueues a job for each change of a row.

-- Enqueues the job for one change of a row. A job with a short payload is stored by one insert, as in enqueue_plain.
CREATE OR REPLACE FUNCTION howdah.enqueue_changed(task_type text, changed bytea, about jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stored howdah.ready;
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    about := howdah.headers_of('about', about, s);
    INSERT INTO howdah.ready AS r (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers, payload)
    SELECT nextval('howdah.job_id'), howdah.rank_now(), now(), t.timeout_ms, t.id, 0, coalesce(t.max_attempts, 10), 0, about, changed
    FROM howdah.task_type t
    WHERE t.name = enqueue_changed.task_type AND t.unused_since IS NULL AND octet_length(changed) <= least(t.max_payload_bytes, 1024) AND howdah.running_job() IS NULL
      AND NOT howdah.has_grants() AND NOT howdah.is_closed()
    RETURNING r.* INTO stored;
    IF FOUND THEN
        INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (stored.type_id, 1);
        PERFORM howdah.announce(stored.type_id, stored.rank);
    ELSE
        PERFORM howdah.enqueue_any(task_type, changed, about);
    END IF;
END $$;

-- The trigger function of on_change: enqueues a job for each changed row. It runs with the rights of the role that writes the
-- row, because converting a row to JSON runs the casts of its column types. With the owner's rights, a role that can create a
-- type with a cast could run code as the owner. So the writing role must be a member of howdah_producer.
CREATE OR REPLACE FUNCTION howdah.enqueue_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (CASE WHEN has_schema_privilege(rtrim('howdah.', '.'), 'USAGE')
                 THEN has_function_privilege('howdah.enqueue_changed(text, bytea, jsonb)', 'EXECUTE') ELSE false END) THEN
        RAISE EXCEPTION 'a change of %.% enqueues a job of %, and % may not enqueue', quote_ident(TG_TABLE_SCHEMA),
            quote_ident(TG_TABLE_NAME), to_json(TG_ARGV[0]), quote_ident(current_user)
            USING ERRCODE = '42501', HINT = format('GRANT howdah_producer TO %I', current_user);
    END IF;
    PERFORM howdah.enqueue_changed(
        TG_ARGV[0], convert_to(to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END)::text, 'UTF8'),
        jsonb_build_object('operation', lower(TG_OP), 'table', format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME)));
    RETURN NULL;
END $$;

-- Creates a trigger, so that each insert, update and delete of a row enqueues a job. The payload is the new or deleted row as
-- JSON; the headers are operation and table. The caller needs the right to create a trigger on the table. Returns the name of
-- the trigger, howdah_TYPE. An existing trigger of that name is not changed, also if it is disabled or ENABLE ALWAYS. A long
-- task type is shortened with a hash, because Postgres truncates names.
CREATE OR REPLACE FUNCTION howdah.on_change(table_name regclass, task_type text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'howdah_' || CASE WHEN length(task_type) <= 56 THEN task_type ELSE left(task_type, 23) || '_' || md5(task_type) END;
BEGIN
    IF table_name IS NULL THEN
        RAISE EXCEPTION 'table_name is null; name a table' USING ERRCODE = '22023', COLUMN = 'table_name';
    END IF;
    IF task_type IS NULL OR task_type !~ '^[A-Za-z0-9._:/-]{1,200}$' THEN
        RAISE EXCEPTION 'task_type is %; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed', coalesce(to_json(left(task_type, 40))::text, 'null')
            USING ERRCODE = '22023', COLUMN = 'task_type';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = table_name AND t.tgname = name AND t.tgfoid = 'howdah.enqueue_change'::regproc) THEN
        EXECUTE pg_catalog.format('CREATE OR REPLACE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
                                  'EXECUTE FUNCTION howdah.enqueue_change(%L)', name, table_name, task_type);
    END IF;
    RETURN name;
END $$;
