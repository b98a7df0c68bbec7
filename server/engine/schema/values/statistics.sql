-- Durations of attempts, as statistics count them.

-- Returns the bucket of a duration. Bucket b has durations over 2^((b-1)/4) and up to 2^(b/4) µs; bucket 0 has all up to 1 µs.
-- Each bucket is 19 % wider than the one before. So the middle of a bucket is at most 9.1 % away from any of its durations (in
-- Rust: server/core/src/job/statistics.rs).
CREATE OR REPLACE FUNCTION howdah.duration_bucket(us bigint) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ceil(4 * ln(greatest(us, 1)::double precision) / 0.6931471805599453)::smallint
$$;

-- Returns the wait time of a job before its attempt started, µs. Its rank tells when it became ready (values/ranks.sql). The
-- rank of a job with a fair key may be in the past or in the future, but the job was not ready before it existed.
CREATE OR REPLACE FUNCTION howdah.waited_us(rank bigint, priority smallint, options jsonb, created timestamptz, leased_at timestamptz)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest((date_part('epoch', leased_at) * 1000000)::bigint
                    - greatest(rank - priority * howdah.step_of(options), (date_part('epoch', created) * 1000000)::bigint), 0)
$$;

-- Returns the run time of an attempt that ends now, µs.
CREATE OR REPLACE FUNCTION howdah.ran_us(leased_at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest((date_part('epoch', now()) * 1000000)::bigint - (date_part('epoch', leased_at) * 1000000)::bigint, 0)
$$;
