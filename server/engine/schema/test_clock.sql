-- A clock that tests advance (functions/advance.sql). Replaces Postgres's now() and clock_timestamp() in a new database of
-- `howdah dev --ephemeral`. Runs before the rest of the schema, because column defaults and functions with an SQL-standard body
-- refer to these functions by oid. Needs a superuser. howdah.advance replaces the new functions. Postgres inlines them into
-- plans, and plans again when they change, so the clock costs nothing.
DO $$ BEGIN
    -- Another schema in this database may have created the clock.
    IF to_regprocedure('pg_catalog.howdah_real_now()') IS NULL THEN
        ALTER FUNCTION pg_catalog.now() RENAME TO howdah_real_now;
        ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO howdah_real_clock_timestamp;
        CREATE FUNCTION pg_catalog.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
            RETURN pg_catalog.howdah_real_now();
        CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
            RETURN pg_catalog.howdah_real_clock_timestamp();
    END IF;
END $$;
