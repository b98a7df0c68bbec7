-- Moves the position of a bulk operation, if it is running and this broker still owns it. If the position is lost, no job is
-- changed twice: jobs that the operation has changed are not found again.
-- $1 id $2 this broker $3 state (null: the round is over) $4 rank $5 id $6 ms to wait $7 rounds at most $8 whether to look
-- again for jobs that have moved
WITH found AS MATERIALIZED (
    SELECT id, failed > 0 OR ($8::boolean AND round_done > 0) AS again, round_done, round FROM howdah.bulk
    WHERE id = $1::bigint AND state = 'running' AND owner = $2::integer FOR UPDATE
),
next AS (
    SELECT id, $3::text IS NULL AS over, $3 IS NULL AND again AND round < $7::integer AS begins, round_done FROM found
)
UPDATE howdah.bulk b SET
    at_state = $3, at_rank = $4::bigint, at_id = $5::bigint, updated = now(),
    round = b.round + begins::integer,
    round_done = CASE WHEN begins THEN 0 ELSE b.round_done END,
    -- If the last round changed no job, the jobs that are left are locked by other transactions: wait a second.
    next_at = now() + CASE WHEN begins AND next.round_done = 0 THEN 1000 ELSE $6::bigint END * interval '1 millisecond',
    state = CASE WHEN over AND NOT begins THEN 'completed' ELSE b.state END,
    ended = CASE WHEN over AND NOT begins THEN now() END,
    owner = CASE WHEN over AND NOT begins THEN NULL ELSE b.owner END
FROM next WHERE b.id = next.id
RETURNING b.state
