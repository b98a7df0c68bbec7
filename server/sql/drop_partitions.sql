-- History first: then the payloads of its jobs have no more use. They are a day older at most. $1 days kept
WITH history AS MATERIALIZED (
    SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped
)
SELECT dropped + howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped FROM history
