-- Deletes states of limit keys, keys whose hold is over, and ranks of fair keys, if no job needs them. Also deletes expired
-- revocations of JSON Web Tokens. The state of a limit key is kept while jobs wait for the key, or the key has its own limit.
WITH states AS (
    DELETE FROM howdah.limit_state g
    WHERE g.check_at IS NULL AND g.limit_key <> '' AND g.max_running IS NULL AND (g.paused_until IS NULL OR g.paused_until < now())
      AND coalesce(greatest(g.refilled, g.gap_from), '-infinity') < now() - interval '30 days'
      AND NOT EXISTS (SELECT FROM howdah.waiting w WHERE w.type_id = g.type_id AND w.limit_key = g.limit_key)
),
revocations AS (
    DELETE FROM howdah.revoked_jwt WHERE until < now()
),
keys AS (
    DELETE FROM howdah.job_key WHERE held_until < now() AND next_id IS NULL
),
shares AS (
    DELETE FROM howdah.fair_share
    WHERE last_rank < (priority::bigint * howdah.rank_step(type_id)
                       + extract(epoch FROM now() - interval '1 day') * 1000000)
)
SELECT 1
