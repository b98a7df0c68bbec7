-- Brakes: a type with a brake is braked after failed attempts in a row. howdah.type_quota holds back its claims, and
-- spend_tokens.sql records trials.

-- Returns the pause before the trial that follows this many trials. It doubles with each trial.
CREATE OR REPLACE FUNCTION howdah.brake_pause(t howdah.task_type, trials integer) RETURNS interval LANGUAGE sql IMMUTABLE
    RETURN least(t.brake_initial_ms * power(2, least(trials, 60)), t.brake_max_ms) * interval '1 millisecond';

-- Counts attempts that have ended, for the brakes of their types; ignores types without a brake. succeeded: whether an attempt of
-- the type succeeded; failed: the number of attempts that failed after it. Returns the types whose brake started or ended. The
-- pause counts from the last failed attempt, also if that attempt began before the brake.
CREATE OR REPLACE FUNCTION howdah.count_for_brakes(type_ids integer[], succeeded boolean[], failed bigint[])
RETURNS TABLE (type_id integer, failures bigint, since timestamptz, is_braked boolean) LANGUAGE plpgsql AS $$
DECLARE
    e record;
    b howdah.brake;
BEGIN
    FOR e IN
        SELECT t AS of_type, u.succeeded, u.failed
        FROM unnest(type_ids, succeeded, failed) AS u(id, succeeded, failed) JOIN howdah.task_type t ON t.id = u.id
        WHERE t.brake_failures IS NOT NULL ORDER BY t.id
    LOOP
        type_id := (e.of_type).id;
        IF e.succeeded THEN
            DELETE FROM howdah.brake k WHERE k.type_id = (e.of_type).id RETURNING k.* INTO b;
            IF b.since IS NOT NULL THEN
                failures := b.failures;
                since := b.since;
                is_braked := false;
                RETURN NEXT;
            END IF;
        END IF;
        IF e.failed > 0 THEN
            INSERT INTO howdah.brake AS k (type_id, failures) VALUES ((e.of_type).id, e.failed)
            ON CONFLICT ON CONSTRAINT brake_pkey DO UPDATE SET failures = k.failures + excluded.failures
            RETURNING k.* INTO b;
            IF b.failures >= (e.of_type).brake_failures THEN
                UPDATE howdah.brake k SET since = coalesce(k.since, now()), next_at = now() + howdah.brake_pause(e.of_type, k.trials),
                    tried = (SELECT l.leased_at FROM howdah.leased l
                             WHERE l.type_id = k.type_id AND l.limited AND l.leased_at = k.tried LIMIT 1)
                WHERE k.type_id = (e.of_type).id;
                IF b.since IS NULL THEN
                    failures := b.failures;
                    since := now();
                    is_braked := true;
                    RETURN NEXT;
                END IF;
            END IF;
        END IF;
    END LOOP;
END $$;
