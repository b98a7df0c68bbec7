-- What operators see of jobs and types.

-- The payload of a job, also if it is stored out of line.
CREATE OR REPLACE FUNCTION howdah.payload_of(job_id bigint, payload bytea, options jsonb) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN options -> 'payload_bytes' IS NULL THEN payload
                ELSE coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = job_id LIMIT 1), payload) END
$$;

-- The name of the type that a job had before it went to its fallback; null if it did not.
CREATE OR REPLACE FUNCTION howdah.original_type(options jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT t.name FROM howdah.task_type t
    WHERE t.id = CASE WHEN jsonb_typeof(options -> 'fallback_from') = 'number'
                      THEN least(greatest((options -> 'fallback_from')::numeric, 0), 2147483647)::integer END
$$;

-- The limits of a type that are set.
CREATE OR REPLACE FUNCTION howdah.limits_of(t howdah.task_type) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'max_running', t.max_running, 'rate_per_s', t.rate_per_s, 'rate_burst', t.rate_burst,
        'key_max_running', t.key_max_running, 'key_strict', t.key_strict, 'key_min_gap_ms', t.key_min_gap_ms,
        'key_rate_per_s', t.key_rate_per_s, 'key_rate_burst', t.key_rate_burst))
$$;

-- The stages and dependencies of a job; null if it has none. Types are shown by name, at most 100 of each list.
CREATE OR REPLACE FUNCTION howdah.coordination_of(job_id bigint, options jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object(
        'next_stages', (
            SELECT jsonb_agg(t.name ORDER BY s.n)
            FROM jsonb_array_elements_text(options -> 'next_stages') WITH ORDINALITY AS s(id, n)
            JOIN howdah.task_type t ON t.id = s.id::integer),
        'completed_stages', (
            SELECT jsonb_agg(d.stage || jsonb_build_object('task_type', t.name) ORDER BY d.n)
            FROM jsonb_array_elements(options -> 'completed_stages') WITH ORDINALITY AS d(stage, n)
            JOIN howdah.task_type t ON t.id = (d.stage ->> 'type')::integer),
        'after', (
            SELECT jsonb_agg(d.after_id ORDER BY d.after_id)
            FROM (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = coordination_of.job_id LIMIT 100) d)
    )), '{}')
$$;
