-- Data about jobs and types for operators.

-- Returns the payload of a job, also if it is stored out of line. If the table of payloads has many day partitions, it reads
-- only the partitions that may contain the payload (lookup.sql). The time is a constant in the statement, so that the planner
-- excludes the other partitions before it locks them.
CREATE OR REPLACE FUNCTION howdah.payload_of(job_id bigint, payload bytea, options jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
DECLARE
    day date;
    found bytea;
BEGIN
    IF options -> 'payload_bytes' IS NULL THEN
        RETURN payload;
    END IF;
    IF (SELECT count(*) FROM pg_inherits i WHERE i.inhparent = 'howdah.payload'::regclass) <= 100 THEN
        RETURN coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = job_id LIMIT 1), payload);
    END IF;
    FOR day IN
        SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid LEFT JOIN howdah.id_range r ON r.part = c.relname::text
        WHERE i.inhparent = 'howdah.payload'::regclass AND c.relname ~ '_[0-9]{8}$'
          AND (r.part IS NULL OR job_id BETWEEN r.first_id AND r.last_id)
    LOOP
        EXECUTE format('SELECT p.data FROM howdah.payload p WHERE p.id = $1 AND p.created >= %L AND p.created < %L LIMIT 1',
                       day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC') INTO found USING job_id;
        IF found IS NOT NULL THEN
            RETURN found;
        END IF;
    END LOOP;
    RETURN coalesce((SELECT p.data FROM howdah.payload_default p WHERE p.id = job_id LIMIT 1), payload);
END $$;

-- Returns the name of the type that a job had before it went to its fallback; null if it did not.
CREATE OR REPLACE FUNCTION howdah.original_type(options jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT t.name FROM howdah.task_type t
    WHERE t.id = CASE WHEN jsonb_typeof(options -> 'fallback_from') = 'number'
                      THEN least(greatest((options -> 'fallback_from')::numeric, 0), 2147483647)::integer END
$$;

-- Returns the limits that are set for a task type, as a JSON object.
CREATE OR REPLACE FUNCTION howdah.limits_of(t howdah.task_type) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'max_running', t.max_running, 'rate_per_s', t.rate_per_s, 'rate_burst', t.rate_burst,
        'key_max_running', t.key_max_running, 'key_strict', t.key_strict, 'key_min_gap_ms', t.key_min_gap_ms,
        'key_gap_from_end', t.key_gap_from_end,
        'key_rate_per_s', t.key_rate_per_s, 'key_rate_burst', t.key_rate_burst,
        'brake_failures', t.brake_failures, 'brake_initial_ms', t.brake_initial_ms, 'brake_max_ms', t.brake_max_ms))
$$;

-- Returns the stages, the dependencies and the own fallback of a job; null if it has none. Types are shown by name, at most 100 of
-- each list.
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
            SELECT jsonb_agg(a.id ORDER BY a.n)
            FROM jsonb_array_elements(CASE jsonb_typeof(options -> 'after') WHEN 'array' THEN options -> 'after' END)
                     WITH ORDINALITY AS a(id, n) WHERE a.n <= 100),
        'fallback', (
            SELECT t.name FROM howdah.task_type t
            WHERE t.id = CASE WHEN jsonb_typeof(options -> 'fallback') = 'number'
                              THEN least(greatest((options -> 'fallback')::numeric, 0), 2147483647)::integer END)
    )), '{}')
$$;
