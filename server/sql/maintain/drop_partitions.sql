-- Drops old partitions: history first, because then nothing needs the payloads and tags of its jobs, nor their rows in the journal
-- of bulk operations. Payloads and tags are at most a day older; those of types that are kept longer are copied. $1 days kept
WITH oldest AS MATERIALIZED (
    SELECT (now() AT TIME ZONE 'UTC')::date - greatest($1::integer, (SELECT max(history_days) FROM howdah.task_type)) AS day
),
history AS MATERIALIZED (SELECT howdah.drop_history_partitions(day) AS dropped FROM oldest)
SELECT dropped + howdah.drop_bulk_change_partitions(day)
     + howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer)
     + howdah.drop_tag_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped
FROM history, oldest
