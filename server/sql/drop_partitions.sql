-- $1 days kept
SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped
