-- What the options of a job mean.

-- The size of a payload: an integer (a sum of bigint is numeric, and slow), and 1 GiB at most, whatever somebody wrote into
-- options: one row must not fail the claim of all. A checkpoint (report_progress.sql) is sent with its job, so
-- it counts wherever the payload does: in windows, in what a claim may take, in messages. In base64, as it is stored. Bounded like payload_bytes,
-- whatever somebody wrote into options. Most jobs have no options: for them nothing more is read.
CREATE OR REPLACE FUNCTION howdah.payload_size(payload bytea, options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN options IS NULL THEN octet_length(payload)
                ELSE CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                          THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 1073741824)::integer
                          ELSE octet_length(payload) END
                     + least(coalesce(octet_length(options ->> 'checkpoint'), 0), 1048576) END
$$;

-- Whether a job had to start by a time that is over. Its row in expiry may be older than its replacement.
CREATE OR REPLACE FUNCTION howdah.is_late(options jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'expire_at_us') = 'number'
                THEN (options -> 'expire_at_us')::numeric <= extract(epoch FROM now()) * 1000000 ELSE false END
$$;

-- What the options of a job say once it is in its fallback: nothing there keeps it waiting, and no stage follows.
CREATE OR REPLACE FUNCTION howdah.in_fallback(options jsonb, from_type integer) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(options, '{}') - 'fallback' - 'limit_key' - 'fair_key' - 'start_us' - 'expire_at_us' - 'next_stages' - 'stage_payload'
        || jsonb_build_object('fallback_from', from_type)
$$;

-- Whether a succeeded job goes to history.
CREATE OR REPLACE FUNCTION howdah.keeps_history(mode text, failures jsonb, result bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE mode WHEN 'none' THEN false WHEN 'failures' THEN failures IS NOT NULL
                     WHEN 'without_empty' THEN failures IS NOT NULL OR result IS NOT NULL ELSE true END
$$;

-- The options of a job that goes on to its next stage; what it did in this one is noted, the last 100. A stage
-- that the worker has named goes on behind it in the list, if it is there.
CREATE OR REPLACE FUNCTION howdah.next_stage(options jsonb, next_type integer, type_id integer, attempt smallint, leased_at timestamptz)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    left_over jsonb := coalesce(options -> 'next_stages', '[]');
    done jsonb := coalesce(options -> 'stages_done', '[]');
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
        || jsonb_build_object('coordinated', true, 'next_stages', left_over, 'stages_done', done,
                              'key_type', coalesce(options -> 'key_type', to_jsonb(type_id)));
    IF options ->> 'stage_payload' = 'result' THEN
        options := options - 'payload_bytes';
    END IF;
    RETURN options;
END $$;
