-- Replaces the limits of a type, after update_task_type.sql and in its transaction. $1 name $2 limits
UPDATE howdah.task_type SET
    max_running = ($2::jsonb ->> 'max_running')::integer, rate_per_s = ($2 ->> 'rate_per_s')::double precision,
    rate_burst = ($2 ->> 'rate_burst')::integer, key_max_running = ($2 ->> 'key_max_running')::integer,
    key_strict = ($2 ->> 'key_strict')::boolean, key_min_gap_ms = ($2 ->> 'key_min_gap_ms')::bigint,
    key_rate_per_s = ($2 ->> 'key_rate_per_s')::double precision, key_rate_burst = ($2 ->> 'key_rate_burst')::integer
WHERE name = $1::text AND howdah.limits_of(task_type) <> $2::jsonb
RETURNING id
