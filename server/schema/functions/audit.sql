-- The audit: its rows from SQL, and its partitions.

-- Records what a function changed. The caller may give a reason: SET LOCAL "howdah.reason" = '...' (spelled with \x2e here,
-- because the name is the same in every schema).
CREATE OR REPLACE FUNCTION howdah.record_by_name(method text, types text[], ids text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO howdah.audit (principal, peer, method, types, count, ids, reason)
    SELECT 'sql:' || session_user, coalesce(host(inet_client_addr()) || ':' || inet_client_port(), ''), method, types,
           cardinality(ids), ids, left(coalesce(current_setting(E'howdah\x2ereason', true), ''), 500)
$$;

-- The same for a job.
CREATE OR REPLACE FUNCTION howdah.record_change(method text, of_type integer, job_id bigint) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.record_by_name(method, ARRAY(SELECT t.name FROM howdah.task_type t WHERE t.id = of_type), ARRAY[job_id::text])
$$;

-- Makes the partition of the audit for one day (UTC). Rows are never moved: a day of which the default partition has rows
-- keeps them there, and gets no partition of its own. False: there is one already, or none can be made.
CREATE OR REPLACE FUNCTION howdah.make_audit_partition(day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text := 'audit' || to_char(day, '_YYYYMMDD');
    from_time timestamptz := day::timestamp AT TIME ZONE 'UTC';
    to_time timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    PERFORM howdah.make_default_partition('audit');
    IF howdah.has_table(part) THEN
        RETURN false;
    END IF;
    PERFORM howdah.lock_partitions();
    IF howdah.has_table(part) OR EXISTS (SELECT FROM howdah.audit_default a WHERE a.time >= from_time AND a.time < to_time) THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('CREATE TABLE howdah.%I (LIKE howdah.audit INCLUDING ALL)', part);
    EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.%I '
                   'FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change()', part);
    EXECUTE format('ALTER TABLE howdah.audit ATTACH PARTITION howdah.%I FOR VALUES FROM (%L) TO (%L)', part, from_time, to_time);
    RETURN true;
EXCEPTION WHEN check_violation THEN
    -- A row of that day has just come to the default partition.
    RETURN false;
END $$;

-- Drops the partitions of the audit before this day: the only way in which its rows go. Returns how many.
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
