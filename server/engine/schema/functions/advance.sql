-- Advances the clock of a test database. No stored time changes, so everything that compares stored times with now() follows:
-- delays, retries, schedules, deadlines, limits, retention.

-- Returns how far tests have advanced the clock of this database; null: the database has no test clock (test_clock.sql).
CREATE OR REPLACE FUNCTION howdah.clock_ahead() RETURNS interval LANGUAGE plpgsql STABLE AS $$
DECLARE
    ahead interval;
BEGIN
    IF to_regprocedure('pg_catalog.howdah_real_now()') IS NOT NULL THEN
        EXECUTE 'SELECT now() - pg_catalog.howdah_real_now()' INTO ahead;
    END IF;
    RETURN ahead;
END $$;

-- Advances the clock. Returns the new version of the settings, so that brokers look for work again.
CREATE OR REPLACE FUNCTION howdah.advance_clock(by interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- Equals LONGEST_ADVANCE in the broker.
    most CONSTANT interval := '3650 days';
    moved interval;
    ahead interval;
    f record;
    new_version bigint;
BEGIN
    IF howdah.clock_ahead() IS NULL THEN
        RAISE EXCEPTION 'the clock of this database cannot be advanced: only the databases of howdah dev --ephemeral, for tests, have such a clock'
            USING ERRCODE = '55000'; -- object_not_in_prerequisite_state
    END IF;
    -- Serializes advances, and waits for renewals that use the old time. A broker would otherwise store an expiry in the past.
    LOCK TABLE howdah.broker IN SHARE ROW EXCLUSIVE MODE;
    ahead := howdah.clock_ahead();
    IF by IS NULL OR by <= '0' OR by > most OR by > most - ahead THEN
        PERFORM howdah.refuse('by', format('is %s; more than 0, and at most %s, is allowed: the clock may be 3650 days ahead',
                                            coalesce(by::text, 'null'), most - ahead));
    END IF;
    -- Seconds, because days and months have no constant length in the time zone of a session.
    moved := make_interval(secs => extract(epoch FROM by)::double precision);
    ahead := make_interval(secs => extract(epoch FROM ahead + moved)::double precision);
    FOR f IN VALUES ('now', 'STABLE'), ('clock_timestamp', 'VOLATILE') LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION pg_catalog.%I() RETURNS timestamptz LANGUAGE sql %s PARALLEL SAFE '
                       'RETURN pg_catalog.%I() + interval %L', f.column1, f.column2, 'howdah_real_' || f.column1, ahead);
    END LOOP;
    -- Brokers and workers go on in real time, so their leases and heartbeats do not expire.
    UPDATE howdah.broker SET expires = expires + moved;
    UPDATE howdah.worker SET updated = updated + moved;
    UPDATE howdah.settings SET version = version + 1 RETURNING version INTO new_version;
    RETURN new_version;
END $$;

-- Advances the clock of a test database, and notifies the brokers. Returns the new time. No role has the right to call it, except
-- the owner.
CREATE OR REPLACE FUNCTION howdah.advance(by interval) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb := howdah.audited_settings('cluster', '');
    new_time timestamptz;
BEGIN
    PERFORM howdah.advance_clock(by);
    PERFORM howdah.record_by_name('howdah.advance', '{}', '{}', howdah.changed_settings(before, howdah.audited_settings('cluster', '')));
    PERFORM howdah.notify('s');
    EXECUTE 'SELECT now()' INTO new_time;
    RETURN new_time;
END $$;
