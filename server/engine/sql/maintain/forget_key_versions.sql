-- Deletes versions of keys whose last job ended before the history that its type keeps. Each type has its own time, so the old
-- versions of each type are found by the index. $1 days kept $2 at most
DELETE FROM howdah.key_version WHERE ctid = ANY (ARRAY(
    SELECT v.ctid FROM howdah.task_type t CROSS JOIN LATERAL (
        SELECT k.ctid FROM howdah.key_version k
        WHERE k.type_id = t.id AND k.ended < now() - coalesce(t.history_days, $1::integer) * interval '1 day'
        ORDER BY k.ended LIMIT $2::integer FOR UPDATE SKIP LOCKED) v
    LIMIT $2::integer))
RETURNING 1
