-- Inserts ready jobs of many tenants directly, as Howdah's enqueue would have left them, cycling through the fair
-- keys. The payload begins with eight 0xff bytes, which mark a job that counts as due at the start of the
-- measurement.
-- $1 type id $2 number of jobs $3 payload size in bytes $4 number of tenants; returns the last id
WITH body AS MATERIALIZED (
    SELECT decode(repeat('ff', 8) || repeat('5a', $3::bigint::integer - 8), 'hex') AS payload
), stored AS (
    INSERT INTO howdah.ready (id, rank, created, type_id, attempt, max_attempts, priority, options, payload)
    SELECT nextval('howdah.job_id'), (extract(epoch FROM now()) * 1000000)::bigint + n / $4::bigint * 1000, now(),
           $1::bigint::integer, 0, 10, 0, jsonb_build_object('fair_key', 'tenant-' || n % $4::bigint), body.payload
    FROM body, generate_series(0, $2::bigint - 1) n
    RETURNING id
)
SELECT max(id) FROM stored
