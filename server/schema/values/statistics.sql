-- Durations of attempts, as statistics count them.

-- The bucket of a duration. Bucket b has those over 2^((b-1)/4) and up to 2^(b/4) µs; 0 has all up to 1 µs. Each is 19 % wider
-- than the one before, so the middle of a bucket is at most 9.1 % away from any of its durations (in Rust: job::DurationBuckets).
CREATE OR REPLACE FUNCTION howdah.duration_bucket(us bigint) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ceil(4 * ln(greatest(us, 1)::double precision) / 0.6931471805599453)::smallint
$$;

-- How long a job was ready before its attempt started, µs. Its rank tells since when (values/ranks.sql). A job with a fair key has
-- a rank in the past or in the future, but it was not ready before it existed.
CREATE OR REPLACE FUNCTION howdah.waited_us(rank bigint, priority smallint, options jsonb, created timestamptz, leased_at timestamptz)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest((date_part('epoch', leased_at) * 1000000)::bigint
                    - greatest(rank - priority * howdah.step_of(options), (date_part('epoch', created) * 1000000)::bigint), 0)
$$;

-- How long an attempt that ends now has run, µs.
CREATE OR REPLACE FUNCTION howdah.ran_us(leased_at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest((date_part('epoch', now()) * 1000000)::bigint - (date_part('epoch', leased_at) * 1000000)::bigint, 0)
$$;
