-- Returns types by name, and marks them as used, because the caller is about to use them, and remembers their ids for up to
-- an hour. An unused type among them is deleted only after another full retention of history. $1 name[]
WITH used AS (
    UPDATE howdah.task_type SET unused_since = now()
    WHERE id IN (SELECT id FROM howdah.task_type
                 WHERE name = ANY ($1::text[]) AND unused_since < now() - interval '1 hour' FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT id, name FROM howdah.task_type WHERE name = ANY ($1::text[])
