-- Inserts ready jobs directly, as Howdah's enqueue would have left them: five million in a minute. The payload begins
-- with eight 0xff bytes, which mark a job that counts as due at the start of the measurement.
-- $1 type id $2 number of jobs $3 payload size in bytes; returns the last id
WITH body AS MATERIALIZED (
    SELECT decode(repeat('ff', 8) || repeat('5a', $3::bigint::integer - 8), 'hex') AS payload
), stored AS (
    INSERT INTO howdah.ready (id, rank, created, type_id, attempt, max_attempts, priority, payload)
    SELECT nextval('howdah.job_id'), (extract(epoch FROM now()) * 1000000)::bigint, now(), $1::bigint::integer, 0, 10,
           0, body.payload
    FROM body, generate_series(1, $2::bigint)
    RETURNING id
)
SELECT max(id) FROM stored
