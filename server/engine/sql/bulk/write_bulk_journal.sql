-- Writes jobs that a bulk operation is about to end to its journal, with the values that history will not keep. It locks the
-- jobs, so that the statement that ends them, later in the transaction, finds exactly these.
-- The journal may list a dependency that a concurrent transaction has just deleted. So an undo checks each dependency again.
-- IS TRUE keeps Postgres from using an index that begins with the type, so that it looks up jobs by id.
-- $1 bulk operation $2 id[] $3 type $4 their state
WITH from_ready AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, type_id, key, options FROM howdah.ready
    WHERE $4::text = 'ready' AND id = ANY ($2::bigint[]) AND (type_id = $3::integer) IS TRUE ORDER BY id FOR UPDATE
),
from_leased AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, type_id, key, options FROM howdah.leased
    WHERE $4 = 'leased' AND id = ANY ($2) AND (type_id = $3) IS TRUE ORDER BY id FOR UPDATE
),
from_scheduled AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, run_at, type_id, key, options FROM howdah.scheduled
    WHERE $4 = 'scheduled' AND id = ANY ($2) AND (type_id = $3) IS TRUE ORDER BY id FOR UPDATE
),
from_waiting AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, type_id, key, options FROM howdah.waiting
    WHERE $4 = 'waiting' AND id = ANY ($2) AND (type_id = $3) IS TRUE ORDER BY id FOR UPDATE
),
from_dead AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, died FROM howdah.dead
    WHERE $4 = 'dead' AND id = ANY ($2) AND (type_id = $3) IS TRUE ORDER BY id FOR UPDATE
),
locked AS MATERIALIZED (
    SELECT id, rank, timeout_ms, last_token, NULL::timestamptz AS at, type_id, key, options FROM from_ready
    UNION ALL SELECT id, rank, timeout_ms, last_token, NULL, type_id, key, options FROM from_leased
    UNION ALL SELECT id, rank, timeout_ms, last_token, run_at, type_id, key, options FROM from_scheduled
    UNION ALL SELECT id, rank, timeout_ms, last_token, NULL, type_id, key, options FROM from_waiting
    -- Dead jobs are excluded, because their keys were freed when they died.
    UNION ALL SELECT id, rank, timeout_ms, last_token, died, NULL, NULL, NULL FROM from_dead
)
INSERT INTO howdah.bulk_change (bulk_id, job_id, rank, state, timeout_ms, last_token, at, after_ids, key_version, key_debounce_until)
SELECT $1::bigint, l.id, l.rank, $4::howdah.job_state, l.timeout_ms, l.last_token, l.at,
       CASE WHEN $4 = 'waiting' THEN nullif(ARRAY(SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = l.id), '{}') END,
       k.version, k.debounce_until
FROM locked l LEFT JOIN LATERAL (
    SELECT o.version, o.debounce_until FROM howdah.job_key o
    WHERE o.type_id = coalesce((l.options ->> 'key_type')::integer, l.type_id) AND o.key = l.key AND o.job_id = l.id OFFSET 0) k ON true
RETURNING job_id
