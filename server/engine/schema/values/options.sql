-- Functions on the options of a job.

-- Returns the size of a job's payload and checkpoint in bytes. A checkpoint (report_progress.sql) is sent with its job, so it
-- counts wherever the payload counts: in windows, claims and messages. It counts in base64, as it is stored. Both sizes are
-- bounded, because a wrong value in the options of one job must not make a claim of many jobs fail. The result is an integer,
-- because a sum of bigint is numeric, and slow. For jobs without options, which are most, only the payload is read.
CREATE OR REPLACE FUNCTION howdah.payload_size(payload bytea, options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN options IS NULL THEN octet_length(payload)
                ELSE CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                          THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 1073741824)::integer
                          ELSE octet_length(payload) END
                     + least(coalesce(octet_length(options ->> 'checkpoint'), 0), 1048576) END
$$;

-- Returns whether the time by which a job had to start has passed. Reads the time from the options and not from the table
-- expiry, which may have an older row of a replaced job.
CREATE OR REPLACE FUNCTION howdah.is_late(options jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'expire_at_us') = 'number'
                THEN (options -> 'expire_at_us')::numeric <= extract(epoch FROM now()) * 1000000 ELSE false END
$$;

-- Returns whether a job meets the conditions of a selection (job::JobConditions); null: every job does. A condition that is not
-- set makes its comparison null.
CREATE OR REPLACE FUNCTION howdah.meets(conditions jsonb, created timestamptz, attempt smallint, options jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT conditions IS NULL OR (
        coalesce(created < to_timestamp((conditions ->> 'created_before_us')::bigint / 1000000.0), true)
        AND coalesce(created >= to_timestamp((conditions ->> 'created_since_us')::bigint / 1000000.0), true)
        AND coalesce(attempt >= (conditions ->> 'attempts_at_least')::smallint, true)
        AND coalesce(attempt <= (conditions ->> 'attempts_at_most')::smallint, true)
        AND coalesce(options ->> 'fair_key' = conditions ->> 'fair_key', conditions -> 'fair_key' IS NULL)
        AND coalesce(options ->> 'limit_key' = conditions ->> 'limit_key', conditions -> 'limit_key' IS NULL)
        AND coalesce(options -> 'tags' ? (conditions ->> 'tag'), conditions -> 'tag' IS NULL))
$$;

-- Returns the options of a job that goes to its fallback type: without start time, expiry, limit key and its limit, fair key,
-- stages and fallback, and with the former type.
CREATE OR REPLACE FUNCTION howdah.in_fallback(options jsonb, from_type integer) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(options, '{}') - 'fallback' - 'limit_key' - 'limit_max' - 'fair_key' - 'start_us' - 'expire_at_us' - 'next_stages' - 'stage_payload'
        || jsonb_build_object('fallback_from', from_type)
$$;

-- Returns whether a succeeded job is kept in history.
CREATE OR REPLACE FUNCTION howdah.keeps_history(mode text, failures jsonb, result bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE mode WHEN 'none' THEN false WHEN 'failures' THEN failures IS NOT NULL
                     WHEN 'without_empty' THEN failures IS NOT NULL OR result IS NOT NULL ELSE true END
$$;

-- Returns the options of a job that goes on to its next stage. The completed stage is recorded; the last 100 are kept. If the
-- worker named the next stage and it is in the list, the stages before it are skipped.
CREATE OR REPLACE FUNCTION howdah.next_stage(options jsonb, next_type integer, type_id integer, attempt smallint, leased_at timestamptz)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    left_over jsonb := coalesce(options -> 'next_stages', '[]');
    done jsonb := coalesce(options -> 'completed_stages', '[]');
    ordinal integer;
BEGIN
    SELECT s.n INTO ordinal FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n)
    WHERE s.id::integer = next_type ORDER BY s.n LIMIT 1;
    SELECT coalesce(jsonb_agg(s.id ORDER BY s.n), '[]') INTO left_over
    FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n) WHERE s.n > coalesce(ordinal, 0);
    IF jsonb_array_length(done) >= 100 THEN
        done := done - 0;
    END IF;
    done := done || jsonb_build_object('type', type_id, 'attempt', attempt, 'started', leased_at, 'finished', now());
    options := coalesce(options, '{}') - 'expire_at_us' - 'start_us'
        || jsonb_build_object('coordinated', true, 'next_stages', left_over, 'completed_stages', done,
                              'key_type', coalesce(options -> 'key_type', to_jsonb(type_id)));
    IF coalesce(options ->> 'stage_payload', 'result') = 'result' THEN
        options := options - 'payload_bytes';
    END IF;
    RETURN options;
END $$;
