-- Limits of a task type, changed by applications.

-- Converts a limit to JSON: null for an argument that the caller omitted, 0 for no limit. Checks that it is at most `most`.
CREATE OR REPLACE FUNCTION howdah.limit_of(field text, value numeric, most bigint) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF value NOT BETWEEN 0 AND most THEN
        PERFORM howdah.refuse(field, format('is %s; at most %s is allowed, and 0 for no limit', left(value::text, 40), most));
    END IF;
    RETURN to_jsonb(value);
END $$;

-- Checks a rate: it has a burst, and a burst has a rate. With a rate near 0 the time of the next start would overflow.
CREATE OR REPLACE FUNCTION howdah.check_rate(field text, limits jsonb, rate text, burst text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF limits ? rate AND NOT limits ? burst THEN
        PERFORM howdah.refuse(field || '_burst', format('is not set; 1 to 1000000 is allowed; for no limit set %s to 0', field));
    ELSIF limits ? burst AND NOT limits ? rate THEN
        PERFORM howdah.refuse(field, format('is not set; set it, or leave %s_burst out', field));
    ELSIF (limits ->> rate)::numeric < 0.000001 THEN
        PERFORM howdah.refuse(field, format('is %s; 0.000001 to 1000000 a second is allowed, and 0 for no limit', left(limits ->> rate, 40)));
    END IF;
END $$;

-- Changes limits of a task type, and creates the type if it is new. An omitted limit stays, and 0 removes a limit. false turns
-- key_strict_order and key_gap_from_end off. Returns false if nothing differs.
CREATE OR REPLACE FUNCTION howdah.set_limits(
    task_type text, max_running integer DEFAULT NULL, rate double precision DEFAULT NULL, rate_burst integer DEFAULT NULL,
    key_max_running integer DEFAULT NULL, key_strict_order boolean DEFAULT NULL, key_min_gap interval DEFAULT NULL,
    key_rate double precision DEFAULT NULL, key_rate_burst integer DEFAULT NULL, key_gap_from_end boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
DECLARE
    t howdah.task_type;
    limits jsonb;
    before jsonb;
    given jsonb;
BEGIN
    PERFORM howdah.check_grant('operate', task_type);
    given := jsonb_strip_nulls(jsonb_build_object(
        'max_running', howdah.limit_of('max_running', max_running, 1000000),
        'rate_per_s', howdah.limit_of('rate', rate::numeric, 1000000),
        'rate_burst', howdah.limit_of('rate_burst', rate_burst, 1000000),
        'key_max_running', howdah.limit_of('key_max_running', key_max_running, 1000000),
        'key_strict', key_strict_order,
        'key_min_gap_ms', howdah.ms_of('key_min_gap', key_min_gap::text, '0 s', '30 days'),
        'key_gap_from_end', key_gap_from_end,
        'key_rate_per_s', howdah.limit_of('key_rate', key_rate::numeric, 1000000),
        'key_rate_burst', howdah.limit_of('key_rate_burst', key_rate_burst, 1000000)));
    t := howdah.type_of_name(task_type, 'task_type');
    -- Serializes changes of settings.
    PERFORM FROM howdah.settings FOR NO KEY UPDATE;
    SELECT * INTO t FROM howdah.task_type o WHERE o.id = t.id;
    limits := howdah.limits_of(t) || given;
    -- Removing a rate also removes its burst; removing the gap also removes key_gap_from_end.
    SELECT coalesce(jsonb_object_agg(l.key, l.value), '{}') INTO limits FROM jsonb_each(limits) l
    WHERE l.value NOT IN ('0', 'false')
      AND (l.key <> 'key_gap_from_end' OR given -> 'key_min_gap_ms' IS DISTINCT FROM '0')
      AND (l.key <> 'rate_burst' OR given -> 'rate_per_s' IS DISTINCT FROM '0')
      AND (l.key <> 'key_rate_burst' OR given -> 'key_rate_per_s' IS DISTINCT FROM '0');
    PERFORM howdah.check_rate('rate', limits, 'rate_per_s', 'rate_burst');
    PERFORM howdah.check_rate('key_rate', limits, 'key_rate_per_s', 'key_rate_burst');
    IF limits ? 'key_strict' AND NOT limits ? 'key_max_running' THEN
        PERFORM howdah.refuse('key_strict_order', 'is set without key_max_running; set that too');
    ELSIF limits ? 'key_gap_from_end' AND NOT limits ? 'key_min_gap_ms' THEN
        PERFORM howdah.refuse('key_gap_from_end', 'is set without key_min_gap; set that too');
    END IF;
    before := howdah.audited_settings('task_type', t.name);
    IF NOT howdah.replace_limits(t.name, limits) THEN
        RETURN false;
    END IF;
    UPDATE howdah.settings SET version = version + 1;
    PERFORM howdah.record_by_name('howdah.set_limits', ARRAY[t.name], ARRAY[t.name],
                                  howdah.changed_settings(before, howdah.audited_settings('task_type', t.name)));
    PERFORM howdah.notify('s');
    RETURN true;
END $$;

-- Changes limits of one limit key of a task type, and creates the type if it is new. max_running replaces the type's
-- key_max_running for this key. An omitted limit stays; 0 removes it. Returns false if nothing differs.
CREATE OR REPLACE FUNCTION howdah.set_key_limits(task_type text, limit_key text, max_running integer DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t howdah.task_type;
    named text;
    most integer;
    before jsonb;
BEGIN
    PERFORM howdah.check_grant('operate', task_type), howdah.limit_of('max_running', max_running, 1000000);
    IF coalesce(limit_key, '') = '' THEN
        PERFORM howdah.refuse('limit_key', 'is empty; name a limit key');
    END IF;
    t := howdah.type_of_name(task_type, 'task_type');
    -- Serializes changes of settings.
    SELECT s.key_bytes INTO STRICT most FROM howdah.settings s FOR NO KEY UPDATE;
    limit_key := howdah.text_of('limit_key', limit_key, most);
    named := t.name || ' ' || limit_key;
    before := howdah.audited_settings('limit_key', named);
    IF max_running IS NULL OR NOT howdah.replace_key_limit(t.id, limit_key, nullif(max_running, 0)) THEN
        RETURN false;
    END IF;
    PERFORM howdah.record_by_name('howdah.set_key_limits', ARRAY[t.name], ARRAY[limit_key],
                                  howdah.changed_settings(before, howdah.audited_settings('limit_key', named)));
    PERFORM howdah.notify('s');
    RETURN true;
END $$;
