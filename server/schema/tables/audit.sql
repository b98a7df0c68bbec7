-- What people and programs have changed (docs/operate/audit.md).

CREATE SEQUENCE howdah.audit_id;

-- One row for each transaction that has changed something, written in that transaction. A partition a day; howdah_reader does
-- not read it. functions/audit.sql makes and drops the partitions.
CREATE TABLE howdah.audit (
    id         bigint NOT NULL DEFAULT nextval('howdah.audit_id'),
    time       timestamptz NOT NULL DEFAULT clock_timestamp(),
    principal  text NOT NULL,    -- who; empty: nobody in particular; sql:ROLE for functions of SQL
    broker     text,             -- the name of the broker; null: an SQL function
    peer       text NOT NULL,    -- the address of the caller; empty: a Unix socket
    method     text NOT NULL,    -- the call of the protocol, or the SQL function
    types      text[] NOT NULL,  -- the first 10 task types
    count      bigint NOT NULL,  -- how many things were changed
    ids        text[] NOT NULL,  -- the first 10 of them: ids of jobs or tokens, names of schedules, limit keys
    reason     text NOT NULL,    -- as the caller gave it; empty: none
    PRIMARY KEY (time, id)
) PARTITION BY RANGE (time);
CREATE TRIGGER no_change BEFORE UPDATE OR DELETE ON howdah.audit FOR EACH ROW EXECUTE FUNCTION howdah.refuse_audit_change();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
-- Takes rows of days without a partition, so that no change fails because one is missing.
CREATE TABLE howdah.audit_default PARTITION OF howdah.audit DEFAULT;
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit_default
    FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
