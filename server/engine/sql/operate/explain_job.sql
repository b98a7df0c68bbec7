-- Returns facts that explain a job: its row, its type, its key, its broker, and the bulk operations that ended or restored it.
-- Each table is looked up by id; the journal takes one look-up per bulk operation that is kept. $1 id
WITH job AS MATERIALIZED (
    SELECT 'ready' AS state, type_id, rank, attempt, max_attempts, key, created, NULL::timestamptz AS run_at,
           NULL::timestamptz AS leased_at, NULL::timestamptz AS finished, NULL::timestamptz AS deadline,
           NULL::integer AS broker_id, options, failures,
           (howdah.payload_size(payload, options) + coalesce(octet_length(headers::text), 0))::bigint AS weight
    FROM howdah.ready WHERE id = $1::bigint
    UNION ALL
    SELECT 'leased', type_id, rank, attempt, max_attempts, key, created, NULL, leased_at, NULL, deadline, broker_id, options,
           failures, NULL
    FROM howdah.leased WHERE id = $1::bigint
    UNION ALL
    SELECT 'scheduled', type_id, rank, attempt, max_attempts, key, created, run_at, leased_at, NULL, NULL, NULL, options,
           failures, NULL
    FROM howdah.scheduled WHERE id = $1::bigint
    UNION ALL
    SELECT 'waiting', type_id, rank, attempt, max_attempts, key, created, NULL, NULL, NULL, NULL, NULL, options, failures, NULL
    FROM howdah.waiting WHERE id = $1::bigint
    UNION ALL
    SELECT 'dead', type_id, rank, attempt, max_attempts, key, created, NULL, leased_at, died, NULL, NULL, options, failures, NULL
    FROM howdah.dead WHERE id = $1::bigint
    UNION ALL
    SELECT outcome::text, type_id, 0, attempt, max_attempts, key, created, NULL, leased_at, finished, NULL, NULL, options,
           failures, NULL
    FROM howdah.history_of(ARRAY[$1::bigint])
)
SELECT $1 AS id, j.state, j.type_id, t.name AS task_type, j.rank, j.attempt, j.max_attempts, j.created, j.run_at, j.leased_at, j.finished,
       j.deadline, j.weight, now() AS now, b.name AS broker,
       j.broker_id IS NOT NULL AND coalesce(b.expires <= now(), true) AS broker_gone,
       j.options ->> 'limit_key' AS limit_key, howdah.limit_max_of(j.options) AS limit_max, j.options ->> 'fair_key' AS fair_key,
       left(j.failures -> -1 ->> 'error', 2000) AS error,
       -- False if the job was snoozed: then its last attempt started later than its last failed attempt.
       (j.failures -> -1 ->> 'started')::timestamptz = j.leased_at AS failed_last,
       (j.options ->> 'queued_behind')::bigint AS queued_behind,
       (SELECT k.job_id FROM howdah.job_key k
        WHERE k.type_id = coalesce((j.options ->> 'key_type')::integer, j.type_id) AND k.key = j.key
              AND k.job_id <> $1 AND (k.held_until IS NULL OR k.held_until > now())) AS key_holder,
       ARRAY(SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = $1 ORDER BY d.after_id LIMIT 11) AS after,
       coalesce(t.paused, false) AS paused,
       EXISTS (SELECT FROM howdah.type_move m WHERE m.type_id = t.id)
           OR EXISTS (SELECT FROM howdah.type_arrival a WHERE a.type_id = t.id AND a.claims_held) AS moves,
       t.max_running, t.rate_per_s, t.key_min_gap_ms, t.key_rate_per_s, t.key_rate_burst,
       coalesce(t.key_strict, false) AS key_strict, coalesce(t.key_gap_from_end, false) AS key_gap_from_end, o.id AS bulk_id, o.reason AS bulk_reason,
       u.bulk_id AS undone_bulk_id, u.operation AS undone_operation, u.changed AS undone_changed, u.undone, p.id AS undo_id, p.principal AS undo_principal
FROM job j JOIN howdah.task_type t ON t.id = j.type_id LEFT JOIN howdah.broker b ON b.id = j.broker_id
LEFT JOIN LATERAL (
    SELECT o.id, o.reason FROM howdah.bulk o
    WHERE o.operation = CASE j.state WHEN 'cancelled' THEN 'cancel' WHEN 'discarded' THEN 'discard' END
      AND EXISTS (SELECT FROM howdah.bulk_change c WHERE c.bulk_id = o.id AND c.job_id = $1 AND c.changed = j.finished
                  AND c.undone IS NULL)
    LIMIT 1) o ON true
LEFT JOIN LATERAL (
    SELECT c.bulk_id, c.changed, c.undone, (SELECT o.operation FROM howdah.bulk o WHERE o.id = c.bulk_id) AS operation
    FROM howdah.bulk_change c WHERE c.job_id = $1 AND c.undone IS NOT NULL ORDER BY c.undone DESC LIMIT 1) u ON true
-- The last undo of the bulk operation that began before the job was restored. Not read for a job that was not restored.
LEFT JOIN LATERAL (
    SELECT o.id, o.principal FROM howdah.bulk o
    WHERE u.bulk_id IS NOT NULL AND o.undo_bulk_id = u.bulk_id AND o.created <= u.undone ORDER BY o.id DESC LIMIT 1) p ON true
LIMIT 1
