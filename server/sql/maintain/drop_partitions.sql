-- History first: then the payloads of its jobs have no more use. They are a day older at most;
-- those of types that are kept for longer are written anew. $1 days kept
WITH history AS MATERIALIZED (
    SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date
               - greatest($1::integer, (SELECT max(history_days) FROM howdah.task_type))) AS dropped
)
SELECT dropped + howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped FROM history
