-- Returns when a type was created. If several stores have a type of this name, the store in which it was created first is its
-- home.
-- $1 name
SELECT created FROM howdah.task_type WHERE name = $1
