-- How much one priority weighs in rank, unless its type says otherwise: 2^45 µs, about 407 days. The only place that knows
-- it in SQL (in Rust: job::PRIORITY_STEP). It is inlined where it is called.
CREATE OR REPLACE FUNCTION howdah.default_step() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::bigint << 45;

-- rank = priority × step + the time it became ready. A job whose priority is not 0, of a type with a step of
-- its own, carries that step in options; so the time can always be told from the rank, and ranks can follow a
-- new step or priority in any number of small transactions, however often that is broken off.
CREATE OR REPLACE FUNCTION howdah.step_of(options jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'priority_step_us') = 'number'
                THEN least(greatest((options -> 'priority_step_us')::numeric, 0), howdah.default_step())::bigint
                ELSE howdah.default_step() END
$$;

-- Options that say with which step the rank was made; nothing is said of the one that is the default.
CREATE OR REPLACE FUNCTION howdah.with_step(options jsonb, priority smallint, step bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options) <> 'object' THEN options
                WHEN priority = 0 OR step = howdah.default_step() THEN nullif(options - 'priority_step_us', '{}'::jsonb)
                ELSE coalesce(options, '{}'::jsonb) || jsonb_build_object('priority_step_us', step) END
$$;

-- The rank of a job, made with the step that its options say, under another priority and step.
CREATE OR REPLACE FUNCTION howdah.reranked(rank bigint, priority smallint, options jsonb, new_priority smallint, step bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT rank - priority * howdah.step_of(options) + new_priority * step
$$;
