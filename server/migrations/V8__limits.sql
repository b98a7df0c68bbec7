

-- Pauses a limit key until a time ('infinity' until it is resumed), or with null resumes it.
CREATE FUNCTION howdah.pause_limit_key(of_type integer, of_key text, until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.limit_gate (type_id, limit_key, check_at, paused_until) VALUES (of_type, of_key, now(), until)
    ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET check_at = now(), paused_until = excluded.paused_until;
    WITH gone AS (
        DELETE FROM howdah.ready r WHERE r.type_id = of_type AND r.options ->> 'limit_key' = of_key
          AND r.options -> 'limit_key' IS NOT NULL AND until > now()
        RETURNING *
    )
    INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                key, limit_key, headers, options, failures, payload)
    SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, of_key, headers,
           options, failures, payload
    FROM gone;
END $$;

-- The limits of a type, those that are set.
CREATE FUNCTION howdah.limits_of(t howdah.task_type) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'max_running', t.max_running, 'rate_per_s', t.rate_per_s, 'rate_burst', t.rate_burst,
        'key_max_running', t.key_max_running, 'key_strict', t.key_strict, 'key_min_gap_ms', t.key_min_gap_ms,
        'key_rate_per_s', t.key_rate_per_s, 'key_rate_burst', t.key_rate_burst))
$$;

-- What a person is told of a special job; null: it is none. Types by their names, at most 100 of each list.
CREATE FUNCTION howdah.special_view(job_id bigint, options jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object(
        'limit_key', options -> 'limit_key', 'fair_key', options -> 'fair_key', 'expire_us', options -> 'expire_us',
        'parent', options -> 'parent',
        'next_stages', (
            SELECT jsonb_agg(t.name ORDER BY s.n)
            FROM jsonb_array_elements_text(options -> 'stages') WITH ORDINALITY AS s(id, n)
            JOIN howdah.task_type t ON t.id = s.id::integer),
        'stages_done', (
            SELECT jsonb_agg(d.stage || jsonb_build_object('task_type', t.name) ORDER BY d.n)
            FROM jsonb_array_elements(options -> 'stages_done') WITH ORDINALITY AS d(stage, n)
            JOIN howdah.task_type t ON t.id = (d.stage ->> 'type')::integer),
        'after', (
            SELECT jsonb_agg(d.after_id ORDER BY d.after_id)
            FROM (SELECT d.after_id FROM howdah.dependency d WHERE d.job_id = special_view.job_id LIMIT 100) d)
    )), '{}')
$$;
