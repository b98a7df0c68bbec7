-- Who asks for a type is about to use it, and remembers its id for up to an hour: an unused type is not deleted for as long as
-- history is kept from now on. $1 name[]
WITH used AS (
    UPDATE howdah.task_type SET unused_since = now()
    WHERE id IN (SELECT id FROM howdah.task_type
                 WHERE name = ANY ($1::text[]) AND unused_since < now() - interval '1 hour' FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT id, name FROM howdah.task_type WHERE name = ANY ($1::text[])
