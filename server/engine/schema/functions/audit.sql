-- The audit: rows written by SQL functions, and day partitions.

-- Records in the audit a change that an SQL function made. The caller may give a reason in a setting: SET LOCAL
-- "howdah\x2ereason" = '...' (\x2e is a dot, escaped because the prefix of the schema is replaced in this file).
CREATE OR REPLACE FUNCTION howdah.record_by_name(method text, types text[], ids text[], changes text[] DEFAULT '{}') RETURNS void LANGUAGE sql AS $$
    INSERT INTO howdah.audit (principal, peer, method, types, count, ids, reason, changes)
    SELECT 'sql:' || session_user, coalesce(host(inet_client_addr()) || ':' || inet_client_port(), ''), method, types,
           cardinality(ids), ids, left(coalesce(current_setting(E'howdah\x2ereason', true), ''), 500), changes
$$;

-- Records in the audit a change that an SQL function made to one job.
CREATE OR REPLACE FUNCTION howdah.record_change(method text, of_type integer, job_id bigint) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.record_by_name(method, ARRAY(SELECT t.name FROM howdah.task_type t WHERE t.id = of_type), ARRAY[job_id::text])
$$;

-- Returns the settings of the cluster, of a task type, of a limit key (named: the type, a space and the key) or of a schedule, for
-- a comparison before and after a change. Columns that brokers change are left out.
CREATE OR REPLACE FUNCTION howdah.audited_settings(kind text, named text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE kind
        WHEN 'cluster' THEN (
            SELECT to_jsonb(s) - '{only_row, version, closed, closed_name, closed_by}'::text[]
                   || jsonb_build_object('clock_ahead', howdah.clock_ahead())
            FROM howdah.settings s)
        WHEN 'task_type' THEN (
            SELECT to_jsonb(t) - '{id, name, created, step_changed, unused_since}'::text[]
                   || jsonb_build_object('fallback', (SELECT f.name FROM howdah.task_type f WHERE f.id = t.fallback))
            FROM howdah.task_type t WHERE t.name = named)
        WHEN 'limit_key' THEN (
            SELECT jsonb_build_object('max_running', g.max_running)
            FROM howdah.task_type t JOIN howdah.limit_state g ON g.type_id = t.id
            WHERE t.name = split_part(named, ' ', 1) AND g.limit_key = substr(named, strpos(named, ' ') + 1))
        WHEN 'schedule' THEN (
            SELECT jsonb_build_object('task_type', s.task_type, 'period_ms', s.period_ms, 'cron', s.cron, 'time_zone', s.time_zone,
                       'drift', s.drift, 'overlap', s.overlap, 'missed', s.missed, 'missed_limit', s.missed_limit,
                       'start_time', s.start_time, 'end_time', s.end_time, 'jitter_ms', s.jitter_ms, 'paused', s.paused,
                       'job_sha256', left(encode(sha256(convert_to(s.template::text, 'UTF8')), 'hex'), 16),
                       'payload_sha256', left(encode(sha256(s.payload), 'hex'), 16))
            FROM howdah.schedule s WHERE s.name = named)
    END
$$;

-- Returns a text for each setting that differs, such as 'max_running: 3 -> 5'. A long value is cut off.
CREATE OR REPLACE FUNCTION howdah.changed_settings(before jsonb, after jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(format('%s: %s -> %s', a.key, left(coalesce(before ->> a.key, 'unset'), 200),
                                     left(coalesce(after ->> a.key, 'unset'), 200)) ORDER BY a.key COLLATE "C"), '{}')
    FROM jsonb_each(after) a WHERE before -> a.key IS DISTINCT FROM a.value
$$;

-- Drops the partitions of the audit before this day, which is the only way to remove its rows. Returns the number of dropped
-- partitions.
CREATE OR REPLACE FUNCTION howdah.drop_audit_partitions(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    FOR part IN SELECT howdah.partitions_before('audit', before) LOOP
        EXECUTE format('DROP TABLE howdah.%I', part);
        dropped := dropped + 1;
    END LOOP;
    IF howdah.has_table('audit_default') AND EXISTS (SELECT FROM howdah.audit_default)
       AND NOT EXISTS (SELECT FROM howdah.audit_default a WHERE a.time >= before::timestamp AT TIME ZONE 'UTC') THEN
        DROP TABLE howdah.audit_default;
        PERFORM howdah.make_default_partition('audit');
        dropped := dropped + 1;
    END IF;
    RETURN dropped;
END $$;
