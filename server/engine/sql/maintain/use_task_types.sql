-- Marks types as used, because workers are subscribed to them. $1 ids
UPDATE howdah.task_type SET unused_since = NULL
WHERE id IN (SELECT id FROM howdah.task_type WHERE id = ANY ($1::integer[]) AND unused_since IS NOT NULL
             FOR NO KEY UPDATE SKIP LOCKED)
