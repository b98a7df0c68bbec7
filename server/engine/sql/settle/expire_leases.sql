-- Moves jobs to history that had expired when they were claimed. They were not delivered, so no attempt has begun. $1 id[]
-- (sorted, unique) $2 token[] $3 broker (null: pulled)
WITH deleted AS (
    DELETE FROM howdah.leased
    WHERE id = ANY ($1::bigint[]) AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])] AND broker_id IS NOT DISTINCT FROM $3::integer
    RETURNING *
),
kept AS (
    INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                options, failures, payload)
    SELECT id, created, now(), type_id, 'expired', attempt - 1, max_attempts, priority, key, headers, options, failures, payload
    FROM deleted
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, expired) SELECT type_id, count(*) FROM deleted GROUP BY type_id
)
SELECT id, type_id, key, coalesce(options, '{}') AS options FROM deleted
