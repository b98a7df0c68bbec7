-- One job, with all of its options.

-- Checks a job, an object of options by their names, by the settings s of the cluster; p goes before their names in errors.
CREATE OR REPLACE FUNCTION howdah.check_job(j jsonb, payload bytea, p text, s howdah.settings) RETURNS howdah.checked_job LANGUAGE plpgsql AS $$
DECLARE
    c howdah.checked_job;
    t howdah.task_type;
    o jsonb;
    bad text;
    policy text;
    stages integer[];
    expire_us bigint;
    expire_ms bigint;
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    step bigint;
BEGIN
    SELECT k INTO bad FROM jsonb_object_keys(j) k WHERE k <> ALL (ARRAY[
        'task_type', 'headers', 'priority', 'key', 'run_at', 'delay', 'max_attempts', 'timeout', 'retry_policy', 'fallback',
        'key_policy', 'key_version', 'key_hold', 'key_debounce_limit', 'expire_at', 'expire_after', 'limit_key', 'fair_key',
        'next_stages', 'stage_payload', 'after', 'on_dependency_failure', 'parent_id', 'traceparent', 'tracestate']) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(p || left(bad, 40), 'is no option of a job');
    END IF;
    PERFORM howdah.check_texts(p, j, 'task_type', 'key', 'run_at', 'delay', 'timeout', 'fallback', 'key_policy', 'key_hold',
                               'key_debounce_limit', 'expire_at', 'expire_after', 'limit_key', 'fair_key', 'stage_payload',
                               'on_dependency_failure', 'traceparent', 'tracestate');
    policy := howdah.word_of(p || 'key_policy', j ->> 'key_policy', 'keep', 'replace', 'replace_if_newer', 'reject', 'debounce');
    expire_us := howdah.us_of(p || 'expire_at', j ->> 'expire_at', s.max_delay);
    expire_ms := howdah.ms_of(p || 'expire_after', j ->> 'expire_after', '1 ms', s.max_delay);
    t := howdah.type_named(j ->> 'task_type', p || 'task_type');
    PERFORM howdah.check_payload(p || 'payload', payload, t, s);
    c.type_id := t.id;
    c.priority := coalesce(howdah.number_of(p || 'priority', j ->> 'priority', -1000, 1000), 0);
    c.max_attempts := coalesce(howdah.number_of(p || 'max_attempts', j ->> 'max_attempts', 1, 1000), t.max_attempts, 10);
    c.timeout_ms := coalesce(howdah.ms_of(p || 'timeout', j ->> 'timeout', '1 ms', s.max_timeout), t.timeout_ms);
    c.key := howdah.text_of(p || 'key', j ->> 'key', s.key_bytes);
    c.headers := howdah.headers_of(p || 'headers', j -> 'headers', s);
    c.run_at_us := howdah.us_of(p || 'run_at', j ->> 'run_at', s.max_delay);
    c.delay_ms := nullif(howdah.ms_of(p || 'delay', j ->> 'delay', '0', s.max_delay), 0);
    IF c.run_at_us IS NOT NULL AND j ? 'delay' THEN
        PERFORM howdah.refuse(p || 'delay', 'is set together with run_at; set one of them');
    ELSIF expire_us IS NOT NULL AND expire_ms IS NOT NULL THEN
        PERFORM howdah.refuse(p || 'expire_after', 'is set together with expire_at; set one of them');
    ELSIF coalesce(expire_us, now_us + expire_ms * 1000) <= coalesce(c.run_at_us, now_us + c.delay_ms * 1000) THEN
        PERFORM howdah.refuse(p || CASE WHEN expire_us IS NULL THEN 'expire_after' ELSE 'expire_at' END,
                              'is not after the job''s start (run_at or delay): it would never run');
    END IF;
    SELECT k INTO bad FROM unnest(ARRAY['key_policy', 'key_version', 'key_hold', 'key_debounce_limit']) k WHERE j ? k LIMIT 1;
    IF bad IS NOT NULL AND c.key IS NULL THEN
        PERFORM howdah.refuse(p || bad, 'is set without a key; set key too');
    ELSIF policy = 'replace_if_newer' AND NOT j ? 'key_version' THEN
        PERFORM howdah.refuse(p || 'key_version', 'is not set; replace_if_newer compares it');
    ELSIF policy = 'debounce' AND c.run_at_us IS NULL AND c.delay_ms IS NULL THEN
        PERFORM howdah.refuse(p || 'key_policy', 'is debounce without a delay or run_at; set how far the job is put off');
    ELSIF policy IS DISTINCT FROM 'debounce' AND j ? 'key_debounce_limit' THEN
        PERFORM howdah.refuse(p || 'key_debounce_limit', 'is set without debounce; set key_policy too');
    END IF;
    PERFORM howdah.check_array(p || 'after', j -> 'after', 'number', s.batch, 'ids of jobs');
    PERFORM howdah.check_array(p || 'next_stages', j -> 'next_stages', 'string', 100, 'task types');
    IF j ? 'on_dependency_failure' AND NOT j ? 'after' THEN
        PERFORM howdah.refuse(p || 'on_dependency_failure', 'is set without after; set that too');
    ELSIF j ? 'stage_payload' AND NOT j ? 'next_stages' THEN
        PERFORM howdah.refuse(p || 'stage_payload', 'is set without next_stages; set those too');
    ELSIF j ->> 'fallback' = t.name THEN
        PERFORM howdah.refuse(p || 'fallback', 'is the task type itself; name another one');
    END IF;
    SELECT array_agg((howdah.type_named(g.name, format('%snext_stages[%s]', p, g.n - 1))).id ORDER BY g.n) INTO stages
    FROM jsonb_array_elements_text(j -> 'next_stages') WITH ORDINALITY AS g(name, n);
    step := coalesce(t.priority_step_us, howdah.default_step());
    c.rank_base := c.priority * step;
    o := jsonb_strip_nulls(jsonb_build_object(
        'retry_policy', nullif(howdah.retry_of(p || 'retry_policy', j -> 'retry_policy'), '{}'),
        'traceparent', howdah.text_of(p || 'traceparent', j ->> 'traceparent', 200),
        'tracestate', howdah.text_of(p || 'tracestate', j ->> 'tracestate', 512),
        'fallback', CASE WHEN j ->> 'fallback' <> '' THEN (howdah.type_named(j ->> 'fallback', p || 'fallback')).id END,
        'limit_key', howdah.text_of(p || 'limit_key', j ->> 'limit_key', s.key_bytes),
        'fair_key', howdah.text_of(p || 'fair_key', j ->> 'fair_key', s.key_bytes),
        'next_stages', to_jsonb(stages),
        'stage_payload', howdah.word_of(p || 'stage_payload', coalesce(j ->> 'stage_payload', CASE WHEN stages IS NOT NULL THEN 'result' END),
                                        'result', 'unchanged'),
        'on_dependency_failure', howdah.word_of(p || 'on_dependency_failure', coalesce(j ->> 'on_dependency_failure',
                                     CASE WHEN j ? 'after' THEN 'cancel' END), 'cancel', 'run', 'wait'),
        'parent_id', nullif(howdah.number_of(
                             p || 'parent_id', coalesce(j ->> 'parent_id', howdah.running_job()::text), 0, 999999999999999999), 0),
        'expire_us', expire_us,
        'payload_bytes', CASE WHEN octet_length(payload) > 1024 THEN octet_length(payload) END));
    IF o ? 'limit_key' OR o ? 'next_stages' THEN
        o := o || '{"coordinated": true}';
    END IF;
    o := nullif(o, '{}');
    c.options := howdah.with_step(o, c.priority, step);
    c.extra := nullif(jsonb_strip_nulls(jsonb_build_object(
        'key_policy', CASE policy WHEN 'keep' THEN NULL WHEN 'replace_if_newer' THEN 'replace_if_newer' ELSE policy END,
        'key_version', howdah.number_of(p || 'key_version', j ->> 'key_version', -999999999999999999, 999999999999999999),
        'key_hold_ms', howdah.ms_of(p || 'key_hold', j ->> 'key_hold', '1 s', '365 days'),
        'key_debounce_limit_ms', howdah.ms_of(p || 'key_debounce_limit', j ->> 'key_debounce_limit', '1 ms', '365 days'),
        'expire_after_ms', expire_ms,
        'after', (SELECT jsonb_agg(DISTINCT howdah.number_of(format('%safter[%s]', p, a.n - 1), a.id, 1, 999999999999999999))
                  FROM jsonb_array_elements_text(j -> 'after') WITH ORDINALITY AS a(id, n)))), '{}');
    c.payload := CASE WHEN octet_length(payload) > 1024 THEN '' ELSE payload END;
    c.data := CASE WHEN octet_length(payload) > 1024 THEN payload END;
    RETURN c;
END $$;
