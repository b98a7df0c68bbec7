-- The audit: rows written by SQL functions, and day partitions.

-- Records the change that a function made. The caller may give a reason: SET LOCAL "howdah.reason" = '...' (spelled with \x2e
-- here, because the name is the same in every schema).
CREATE OR REPLACE FUNCTION howdah.record_by_name(method text, types text[], ids text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO howdah.audit (principal, peer, method, types, count, ids, reason)
    SELECT 'sql:' || session_user, coalesce(host(inet_client_addr()) || ':' || inet_client_port(), ''), method, types,
           cardinality(ids), ids, left(coalesce(current_setting(E'howdah\x2ereason', true), ''), 500)
$$;

-- Records the change that a function made to a job.
CREATE OR REPLACE FUNCTION howdah.record_change(method text, of_type integer, job_id bigint) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.record_by_name(method, ARRAY(SELECT t.name FROM howdah.task_type t WHERE t.id = of_type), ARRAY[job_id::text])
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
