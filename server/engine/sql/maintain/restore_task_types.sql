-- Creates task types that the database has lost, with their former ids, because jobs may be stored with these ids. Skips types
-- whose id or name exists.
-- $1 ids $2 names
INSERT INTO howdah.task_type (id, name) OVERRIDING SYSTEM VALUE
SELECT lost.id, lost.name FROM unnest($1::integer[], $2::text[]) lost (id, name)
ON CONFLICT DO NOTHING
RETURNING name
