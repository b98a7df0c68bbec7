-- Checks one job with all of its options.

-- Checks a job against the cluster settings s. The job j is an object with options by name. In errors, the prefix p stands
-- before the name of an option. Text in double braces is generated from the list of options (server/engine/src/store/option_sql.rs)
-- and checks each option by its kind. Checks that compare several options are written by hand in this function.
CREATE OR REPLACE FUNCTION howdah.check_job(j jsonb, payload bytea, p text, s howdah.settings)
RETURNS howdah.checked_job LANGUAGE plpgsql AS $$
DECLARE
    c howdah.checked_job;
    t howdah.task_type;
    o jsonb;
    bad text;
    alone record;
    step bigint;
BEGIN
    SELECT k INTO bad FROM jsonb_object_keys(j) k WHERE k <> ALL (ARRAY['task_type', {{names}}]) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(p || left(bad, 40), 'is not an option of a job');
    END IF;
    PERFORM howdah.check_texts(p, j, 'task_type', {{texts}});
    t := howdah.type_named(j ->> 'task_type', p || 'task_type');
    PERFORM howdah.check_payload(p || 'payload', payload, t, s);
    o := jsonb_strip_nulls(jsonb_build_object(
        {{checked}},
        'retry_policy', nullif(howdah.retry_of(p || 'retry_policy', j -> 'retry_policy'), '{}'),
        'payload_bytes', CASE WHEN octet_length(payload) > 1024 THEN octet_length(payload) END));
    SELECT n.* INTO alone FROM (VALUES {{needs}}) n(option, needs, problem)
    WHERE j ->> n.option IS NOT NULL AND NOT o ?| n.needs AND NOT (j ->> 'after_local' IS NOT NULL AND 'after_local' = ANY (n.needs))
    LIMIT 1;
    IF alone.option IS NOT NULL THEN
        PERFORM howdah.refuse(p || alone.option, alone.problem);
    END IF;
    PERFORM howdah.check_start(p, o), howdah.check_key(p, o);
    IF j ->> 'fallback' = t.name THEN
        PERFORM howdah.refuse(p || 'fallback', 'is the task type itself; name another one');
    END IF;
    IF o ? 'next_stages' AND NOT o ? 'stage_payload' THEN
        o := o || '{"stage_payload": "result"}';
    END IF;
    IF (j ? 'after' OR j ? 'after_local') AND NOT o ? 'on_dependency_failure' THEN
        o := o || '{"on_dependency_failure": "cancel"}';
    END IF;
    IF NOT o ? 'parent_id' THEN
        o := o || jsonb_strip_nulls(jsonb_build_object('parent_id', howdah.running_job()));
    ELSIF o ->> 'parent_id' = '0' THEN
        o := o - 'parent_id';
    END IF;
    IF o ->> 'key_policy' = 'keep' THEN
        o := o - 'key_policy';
    END IF;
    step := coalesce(t.priority_step_us, howdah.default_step());
    c.type_id := t.id;
    c.priority := coalesce((o ->> 'priority')::smallint, 0);
    c.rank_base := c.priority * step;
    c.max_attempts := coalesce((o ->> 'max_attempts')::smallint, t.max_attempts, 10);
    c.timeout_ms := coalesce((o ->> 'timeout_ms')::bigint, t.timeout_ms);
    c.key := o ->> 'key';
    c.headers := o -> 'headers';
    c.run_at_us := (o ->> 'run_at_us')::bigint;
    c.delay_ms := nullif((o ->> 'delay_ms')::bigint, 0);
    c.options := howdah.with_step(nullif(o - '{priority,max_attempts,timeout_ms,key,headers,run_at_us,delay_ms}'::text[], '{}'),
                                  c.priority, step);
    c.payload := CASE WHEN octet_length(payload) > 1024 THEN '' ELSE payload END;
    c.data := CASE WHEN octet_length(payload) > 1024 THEN payload END;
    RETURN c;
END $$;

-- Checks the options for the start and the expiry of a job.
CREATE OR REPLACE FUNCTION howdah.check_start(p text, o jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
BEGIN
    IF o ?& '{run_at_us,delay_ms}' THEN
        PERFORM howdah.refuse(p || 'delay', 'is set together with run_at; set one of them');
    ELSIF o ?& '{expire_at_us,expire_after_ms}' THEN
        PERFORM howdah.refuse(p || 'expire_after', 'is set together with expire_at; set one of them');
    ELSIF coalesce((o ->> 'expire_at_us')::bigint, now_us + (o ->> 'expire_after_ms')::bigint * 1000)
          <= coalesce((o ->> 'run_at_us')::bigint, now_us + nullif((o ->> 'delay_ms')::bigint, 0) * 1000) THEN
        PERFORM howdah.refuse(p || CASE WHEN o ? 'expire_at_us' THEN 'expire_at' ELSE 'expire_after' END,
            CASE WHEN o ? 'expire_at_us' THEN '' ELSE 'counts from the enqueue and ' END
            || 'is not after the job''s start (run_at or delay), so the job would never run; set a later time');
    END IF;
END $$;

-- Checks the options of a key.
CREATE OR REPLACE FUNCTION howdah.check_key(p text, o jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    policy text := o ->> 'key_policy';
BEGIN
    IF policy = 'replace_if_newer' AND NOT o ? 'key_version' THEN
        PERFORM howdah.refuse(p || 'key_version', 'is not set; replace_if_newer compares it');
    ELSIF policy = 'debounce' AND NOT o ? 'run_at_us' AND coalesce(o ->> 'delay_ms', '0') = '0' THEN
        PERFORM howdah.refuse(p || 'key_policy', 'is debounce without a delay or run_at; set how far the job is put off');
    ELSIF policy IS DISTINCT FROM 'debounce' AND o ? 'key_debounce_limit_ms' THEN
        PERFORM howdah.refuse(p || 'key_debounce_limit', 'is set without debounce; set key_policy too');
    END IF;
END $$;
