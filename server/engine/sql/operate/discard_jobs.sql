-- Moves dead jobs to history as discarded. Their keys were freed when they died. For jobs with the mark `coordinated` (their
-- end affects other jobs), the caller runs after_end in the same transaction. $1 id[] $2 only of these types (null: of any)
WITH deleted AS (
    DELETE FROM howdah.dead WHERE id = ANY (ARRAY(
        SELECT id FROM howdah.dead WHERE id = ANY ($1::bigint[])
          AND ($2::integer[] IS NULL OR type_id = ANY ($2::integer[])) ORDER BY id FOR UPDATE))
    RETURNING *
),
kept AS (
    INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority,
                                key, headers, options, failures, payload)
    SELECT id, created, leased_at, now(), type_id, 'discarded', attempt, max_attempts, priority, key, headers, options, failures,
           payload
    FROM deleted
)
SELECT id, type_id, key, CASE WHEN options -> 'coordinated' IS NOT NULL THEN options END AS coordinated_options FROM deleted
