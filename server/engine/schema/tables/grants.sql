-- Grants: the operations that SQL roles may perform on task types. If the table is empty, only the rights on functions apply
-- (api/rights.sql). Otherwise a role may perform the operations that its rows, and the rows of roles that it is a member of,
-- allow. Roles that may act as the owner of this table are not limited. Roles are stored as names, so that a database dump
-- contains them.
CREATE TABLE howdah.grants (
    role       text COLLATE "C" NOT NULL,
    operation  text COLLATE "C" NOT NULL CHECK (operation IN ('enqueue', 'work', 'operate')),
    -- The name of a task type, or a prefix of names followed by a star.
    pattern    text COLLATE "C" NOT NULL CHECK (pattern ~ '^([A-Za-z0-9._:/-]{1,200}|[A-Za-z0-9._:/-]{0,200}[*])$'),
    PRIMARY KEY (role, operation, pattern)
);

-- Returns whether the table may have rows. The planner inlines the constant into the plans of the calling functions, so a
-- database without grants pays nothing (docs/internals/decisions.md). The trigger below replaces the function when the first
-- row is inserted.
CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN false;
CREATE TRIGGER first_grant AFTER INSERT ON howdah.grants FOR EACH ROW EXECUTE FUNCTION howdah.enforce_grants();
-- ALWAYS: the trigger also fires for rows written by logical replication.
ALTER TABLE howdah.grants ENABLE ALWAYS TRIGGER first_grant;
