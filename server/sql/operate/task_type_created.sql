-- Since when there has been a type. Of several stores that have a type of one name, the oldest is its home. $1 name
SELECT created FROM howdah.task_type WHERE name = $1
