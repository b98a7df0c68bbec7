-- The design that Howdah's fair keys are compared with: one table per tenant. Tasks are inserted one per call through
-- a function, and moved to a table of finished tasks in batches. The tables have no index, because nothing is looked
-- up in them. The columns created and finished serve for counting.
CREATE SCHEMA howdah_tenants;
SET search_path = howdah_tenants;

CREATE SEQUENCE task_id;
CREATE TABLE task (
    id       bigint NOT NULL DEFAULT nextval('howdah_tenants.task_id'),
    created  timestamptz NOT NULL DEFAULT now(),
    payload  bytea NOT NULL
);
CREATE TABLE history (
    id        bigint NOT NULL,
    created   timestamptz NOT NULL,
    finished  timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload   bytea NOT NULL
);

-- The functions return SQL statements for one tenant's tables.
CREATE FUNCTION insert_into(tenant integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format('INSERT INTO howdah_tenants.task_%s (payload) VALUES ($1)', tenant)
$$;
CREATE FUNCTION move_from(tenant integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format(
        'WITH gone AS (DELETE FROM howdah_tenants.task_%1$s WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM howdah_tenants.task_%1$s LIMIT 10000)) RETURNING *)
         INSERT INTO howdah_tenants.history_%1$s (id, created, payload) SELECT id, created, payload FROM gone', tenant)
$$;

-- Inserts one task.
CREATE FUNCTION add_task(tenant integer, payload bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE howdah_tenants.insert_into(tenant) USING payload;
END $$;

-- Moves up to 10,000 tasks of a tenant to history, unless another session is moving tasks of this tenant.
CREATE FUNCTION move_tasks(tenant integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moved bigint := 0;
BEGIN
    IF pg_try_advisory_xact_lock(1952804469, tenant) THEN
        EXECUTE howdah_tenants.move_from(tenant);
        GET DIAGNOSTICS moved = ROW_COUNT;
    END IF;
    RETURN moved;
END $$;

-- The procedures below commit often, because the number of locks per transaction is limited.
CREATE PROCEDURE make(tenants integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR tenant IN 0..tenants - 1 LOOP
        EXECUTE format('CREATE TABLE howdah_tenants.task_%s () INHERITS (howdah_tenants.task)', tenant);
        EXECUTE format('CREATE TABLE howdah_tenants.history_%s () INHERITS (howdah_tenants.history)', tenant);
        IF tenant % 50 = 49 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;

-- Plans each tenant's insert, or move if moves is set, without running the statement, so that the session caches all
-- tables before the measurement.
CREATE PROCEDURE touch(tenants integer, moves boolean) LANGUAGE plpgsql AS $$
BEGIN
    FOR tenant IN 0..tenants - 1 LOOP
        IF moves THEN
            EXECUTE 'EXPLAIN ' || howdah_tenants.move_from(tenant);
        ELSE
            EXECUTE 'EXPLAIN ' || howdah_tenants.insert_into(tenant) USING ''::bytea;
        END IF;
        IF tenant % 20 = 19 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;

-- Inserts tasks evenly into the tables of all tenants, as the backlog of a measurement.
CREATE PROCEDURE fill(tenants integer, tasks bigint, bytes integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR tenant IN 0..tenants - 1 LOOP
        EXECUTE format(
            'INSERT INTO howdah_tenants.task_%s (payload) SELECT decode(repeat(''5a'', $1), ''hex'') FROM generate_series(1, $2)', tenant)
        USING bytes, tasks / tenants + CASE WHEN tenant < tasks % tenants THEN 1 ELSE 0 END;
        IF tenant % 50 = 49 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;
