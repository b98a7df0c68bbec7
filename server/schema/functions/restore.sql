-- Archived jobs come back as new ones (docs/operate/archive.md).

-- Enqueues copies of finished jobs, one for each, all or none. A copy has what its job was enqueued with and history keeps; a start
-- time, an expiry, dependencies, progress and errors belong to the old job, and the timeout is that of the type. Each has a request key
-- made of the old id, so that a call can be repeated.
CREATE OR REPLACE FUNCTION howdah.restore_jobs(old_ids bigint[], types text[], payloads bytea[], headers text[], options text[],
                                               priorities integer[], attempts integer[], keys text[])
RETURNS TABLE (old_id bigint, id bigint, outcome text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s howdah.settings;
    t howdah.task_type;
    c howdah.checked_job;
    kept jsonb;
    step bigint;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    FOR i IN 1..cardinality(old_ids) LOOP
        old_id := old_ids[i];
        id := old_id;
        -- It came back by itself: a bulk operation was undone, or the job that it waited for was retried.
        IF EXISTS (SELECT FROM howdah.ready j WHERE j.id = old_ids[i]) OR EXISTS (SELECT FROM howdah.leased j WHERE j.id = old_ids[i])
           OR EXISTS (SELECT FROM howdah.scheduled j WHERE j.id = old_ids[i]) OR EXISTS (SELECT FROM howdah.waiting j WHERE j.id = old_ids[i])
           OR EXISTS (SELECT FROM howdah.dead j WHERE j.id = old_ids[i]) THEN
            outcome := 'unfinished';
            RETURN NEXT;
            CONTINUE;
        END IF;
        t := howdah.type_named(types[i], 'task_type');
        PERFORM howdah.check_payload('payload', payloads[i], t, s);
        step := coalesce(t.priority_step_us, howdah.default_step());
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO kept FROM jsonb_each(coalesce(options[i]::jsonb, '{}')) o
        WHERE o.key = ANY ('{retry_policy,tags,fallback,limit_key,fair_key,next_stages,stage_payload,on_holder_failure}');
        IF EXISTS (SELECT FROM jsonb_array_elements(coalesce(kept -> 'next_stages', '[]') || coalesce(kept -> 'fallback', '[]')) e(type_id)
                   WHERE NOT EXISTS (SELECT FROM howdah.task_type k WHERE k.id = (e.type_id #>> '{}')::integer)) THEN
            PERFORM howdah.refuse('next_stages', 'or fallback names a task type that was deleted');
        END IF;
        IF octet_length(payloads[i]) > 1024 THEN
            kept := kept || jsonb_build_object('payload_bytes', octet_length(payloads[i]));
        END IF;
        c := NULL;
        c.type_id := t.id;
        c.priority := priorities[i];
        c.rank_base := priorities[i] * step;
        c.max_attempts := attempts[i];
        c.timeout_ms := t.timeout_ms;
        c.key := keys[i];
        c.headers := coalesce(headers[i]::jsonb, '{}') || jsonb_build_object('howdah-restored-from', old_ids[i]::text);
        c.options := howdah.with_step(nullif(kept, '{}'), c.priority, step);
        c.payload := CASE WHEN octet_length(payloads[i]) > 1024 THEN '' ELSE payloads[i] END;
        c.data := CASE WHEN octet_length(payloads[i]) > 1024 THEN payloads[i] END;
        SELECT r.id, r.outcome INTO id, outcome
        FROM howdah.store_checked(ARRAY[c], E'\x1frestore\x1f' || old_ids[i], sha256(convert_to(old_ids[i]::text, 'UTF8'))) r;
        RETURN NEXT;
    END LOOP;
END $$;
