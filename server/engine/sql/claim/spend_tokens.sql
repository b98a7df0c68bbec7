-- Spends rate limit tokens of types whose jobs were claimed. If a type is braked, its claimed job is a trial, and the pause
-- before the next one is longer. A row of the brake that another transaction has locked is skipped, so that the
-- claim does not wait. $1 type_id[] $2 jobs[]
WITH trials AS (
    UPDATE howdah.brake b
    SET tried = now(), trials = b.trials + 1, next_at = now() + howdah.brake_pause(t, b.trials + 1)
    FROM howdah.task_type t
    WHERE t.id = b.type_id AND b.type_id = ANY (ARRAY(
        SELECT k.type_id FROM unnest($1::integer[], $2::integer[]) AS u(type_id, jobs)
        JOIN howdah.brake k ON k.type_id = u.type_id
        WHERE u.jobs > 0 AND k.since IS NOT NULL FOR UPDATE OF k SKIP LOCKED))
)
UPDATE howdah.limit_state g SET tokens = greatest(tokens - u.jobs, 0)
FROM unnest($1, $2) AS u(type_id, jobs)
WHERE g.type_id = u.type_id AND g.limit_key = '' AND g.tokens IS NOT NULL
