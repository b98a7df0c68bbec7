-- Drops old day partitions. History comes first, because its jobs need their payloads, tags and rows in the journal of bulk
-- operations. Partitions of payloads and tags are dropped after $1 days, even if a type has a longer retention: payloads and
-- tags of jobs that still exist are copied into the current partition. $1 days kept
WITH oldest AS MATERIALIZED (
    SELECT (now() AT TIME ZONE 'UTC')::date - greatest($1::integer, (SELECT max(history_days) FROM howdah.task_type)) AS day
),
history AS MATERIALIZED (SELECT howdah.drop_history_partitions(day) AS dropped FROM oldest)
SELECT dropped + howdah.drop_bulk_change_partitions(day)
     + howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer)
     + howdah.drop_tag_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped
FROM history, oldest
