-- The audit: changes made by people and programs (docs/operate/audit.md).

CREATE SEQUENCE howdah.audit_id;

-- One row for each transaction that changed something, written in that transaction. The table has day partitions, and
-- functions/audit.sql creates and drops them. howdah_reader cannot read it.
CREATE TABLE howdah.audit (
    id         bigint NOT NULL DEFAULT nextval('howdah.audit_id'),
    time       timestamptz NOT NULL DEFAULT clock_timestamp(),
    principal  text COLLATE "C" NOT NULL,  -- empty: authentication was off; sql:ROLE: an SQL function
    broker     text COLLATE "C",  -- the name of the broker; null: an SQL function
    peer       text COLLATE "C" NOT NULL,  -- the address of the caller; empty: a Unix socket
    method     text COLLATE "C" NOT NULL,  -- the gRPC method, or the SQL function
    types      text[] COLLATE "C" NOT NULL,  -- the first 10 task types
    count      bigint NOT NULL,  -- number of changed objects, such as jobs
    ids        text[] COLLATE "C" NOT NULL,  -- the first 10 changed objects: job or token ids, schedule names, limit keys
    reason     text COLLATE "C" NOT NULL,  -- as the caller gave it; empty: no reason given
    changes    text[] COLLATE "C" NOT NULL DEFAULT '{}',  -- changed settings: 'max_running: 3 -> 5'
    PRIMARY KEY (time, id)
) PARTITION BY RANGE (time);
CREATE TRIGGER no_change BEFORE UPDATE OR DELETE ON howdah.audit FOR EACH ROW EXECUTE FUNCTION howdah.refuse_audit_change();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
-- Default partition of the audit: takes rows of days without a partition, so that no change fails because a partition is
-- missing.
CREATE TABLE howdah.audit_default PARTITION OF howdah.audit DEFAULT;
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON howdah.audit_default
    FOR EACH STATEMENT EXECUTE FUNCTION howdah.refuse_audit_change();
