-- Brakes: a type with a brake is braked after failed attempts in a row. howdah.type_quota holds back its claims, and
-- spend_tokens.sql records trials.

-- Returns the pause before the trial that follows this many trials. It doubles with each trial.
CREATE OR REPLACE FUNCTION howdah.brake_pause(t howdah.task_type, trials integer) RETURNS interval LANGUAGE sql IMMUTABLE
    RETURN least(t.brake_initial_ms * power(2, least(trials, 60)), t.brake_max_ms) * interval '1 millisecond';

-- Counts attempts of a type that have ended, for its brake, if it has one. Only attempts whose lease has the mark `limited` count.
-- succeeded: whether one of them succeeded; failed: the number of attempts that failed after it. is_braked: whether the brake
-- has started (true) or ended (false); null: neither. The pause counts from the last failed attempt, also if that attempt began
-- before the brake.
CREATE OR REPLACE FUNCTION howdah.count_for_brake(of_type integer, succeeded boolean, failed bigint,
                                                  OUT failures bigint, OUT since timestamptz, OUT is_braked boolean)
LANGUAGE plpgsql AS $$
DECLARE
    t howdah.task_type;
    b howdah.brake;
BEGIN
    SELECT * INTO t FROM howdah.task_type y WHERE y.id = of_type AND y.brake_failures IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF succeeded THEN
        DELETE FROM howdah.brake k WHERE k.type_id = of_type RETURNING k.* INTO b;
        IF b.since IS NOT NULL THEN
            failures := b.failures;
            since := b.since;
            is_braked := false;
        END IF;
    END IF;
    IF failed > 0 THEN
        INSERT INTO howdah.brake AS k (type_id, failures) VALUES (of_type, failed)
        ON CONFLICT ON CONSTRAINT brake_pkey DO UPDATE SET failures = k.failures + excluded.failures
        RETURNING k.* INTO b;
        IF b.failures >= t.brake_failures THEN
            UPDATE howdah.brake k SET since = coalesce(k.since, now()), next_at = now() + howdah.brake_pause(t, k.trials),
                tried = (SELECT l.leased_at FROM howdah.leased l
                         WHERE l.type_id = k.type_id AND l.limited AND l.leased_at = k.tried LIMIT 1)
            WHERE k.type_id = of_type;
            IF b.since IS NULL THEN
                failures := b.failures;
                since := now();
                is_braked := true;
            END IF;
        END IF;
    END IF;
END $$;

-- Counts as howdah.count_for_brake does, for many types. Returns the types whose brake started or ended, and those that were not
-- counted, because another transaction has locked their row (is_locked). The call waits up to lock_timeout for the first locked
-- row, and 1 ms for each further one, so that no locked type delays the others.
CREATE OR REPLACE FUNCTION howdah.count_for_brakes(type_ids integer[], succeeded boolean[], failed bigint[])
RETURNS TABLE (type_id integer, failures bigint, since timestamptz, is_braked boolean, is_locked boolean) LANGUAGE plpgsql AS $$
DECLARE
    e record;
BEGIN
    FOR e IN SELECT u.id, u.succeeded, u.failed FROM unnest(type_ids, succeeded, failed) AS u(id, succeeded, failed) ORDER BY u.id LOOP
        type_id := e.id;
        is_locked := false;
        BEGIN
            SELECT c.failures, c.since, c.is_braked INTO failures, since, is_braked
            FROM howdah.count_for_brake(e.id, e.succeeded, e.failed) c;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM set_config('lock_timeout', '1ms', true);
            is_locked := true;
        END;
        IF is_locked OR is_braked IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
