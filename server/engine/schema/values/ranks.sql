-- The default priority step: how far one priority moves the rank, unless the type has another step. It is 2^45 µs, about 407
-- days. This is its only definition in SQL (in Rust: job::PRIORITY_STEP). Postgres inlines the function.
CREATE OR REPLACE FUNCTION howdah.default_step() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::bigint << 45;

-- Returns the priority step that is part of a job's rank. rank = priority × step + the time at which the job became ready. If
-- the priority is not 0 and the type has its own step, the options of the job store the step of the rank. So the time can
-- always be computed from the rank. A change of the step or the priority can be applied to ranks in many small transactions,
-- and be interrupted at any point, because each job says which step its rank has.
CREATE OR REPLACE FUNCTION howdah.step_of(options jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'priority_step_us') = 'number'
                THEN least(greatest((options -> 'priority_step_us')::numeric, 0), howdah.default_step())::bigint
                ELSE howdah.default_step() END
$$;

-- Returns the options of a job with a priority step stored in them. The default step is not stored.
CREATE OR REPLACE FUNCTION howdah.with_step(options jsonb, priority smallint, step bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options) <> 'object' THEN options
                WHEN priority = 0 OR step = howdah.default_step() THEN nullif(options - 'priority_step_us', '{}'::jsonb)
                ELSE coalesce(options, '{}'::jsonb) || jsonb_build_object('priority_step_us', step) END
$$;

-- Returns the rank of a job after a change of its priority or step. The options contain the step of the old rank.
CREATE OR REPLACE FUNCTION howdah.reranked(rank bigint, priority smallint, options jsonb, new_priority smallint, step bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT rank - priority * howdah.step_of(options) + new_priority * step
$$;
