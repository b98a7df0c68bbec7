-- Dead jobs that are given up: to history. Their keys were free already. For special jobs after_end.sql follows
-- in the same transaction. $1 id[]
WITH gone AS (
    DELETE FROM howdah.dead WHERE id = ANY (ARRAY(
        SELECT id FROM howdah.dead WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE))
    RETURNING *
),
kept AS (
    INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority,
                                key, headers, options, failures, payload)
    SELECT id, created, leased_at, now(), type_id, 9, attempt, max_attempts, priority, key, headers, options, failures,
           payload
    FROM gone
)
SELECT id, type_id, key, CASE WHEN options -> 'special' IS NOT NULL THEN options END AS special_options FROM gone
