-- Deletes request keys that are older than a day. $1 at most
DELETE FROM howdah.request WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM howdah.request WHERE created < now() - interval '24 hours' ORDER BY created LIMIT $1::integer))
RETURNING 1
