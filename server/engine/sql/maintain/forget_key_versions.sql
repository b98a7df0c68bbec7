-- Deletes versions of keys whose last job ended before the history that its type keeps. $1 days kept $2 at most
DELETE FROM howdah.key_version WHERE ctid = ANY (ARRAY(
    SELECT v.ctid FROM howdah.key_version v LEFT JOIN howdah.task_type t ON t.id = v.type_id
    WHERE v.ended < now() - coalesce(t.history_days, $1::integer) * interval '1 day' LIMIT $2::integer FOR UPDATE OF v SKIP LOCKED))
RETURNING 1
