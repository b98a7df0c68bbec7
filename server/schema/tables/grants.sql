-- What roles of SQL may do with which task types. Without a row, the rights on functions decide alone (api/rights.sql). With
-- rows, a role may do what its rows say, and those of the roles that it is a member of; who may act as the owner of this table
-- is not limited. Roles are names, so that a dump of the database has them.
CREATE TABLE howdah.grants (
    role       text NOT NULL,
    operation  text NOT NULL CHECK (operation IN ('enqueue', 'work', 'operate')),
    -- The name of a task type, or the beginning of names and a star.
    pattern    text NOT NULL CHECK (pattern ~ '^([A-Za-z0-9._:/-]{1,200}|[A-Za-z0-9._:/-]{0,200}[*])$'),
    PRIMARY KEY (role, operation, pattern)
);

-- Whether there may be grants. The planner puts the constant into the plans of the functions that ask, so a database without
-- grants pays nothing for them (docs/internals/decisions.md). The first row replaces it, for ever.
CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN false;
CREATE TRIGGER first_grant AFTER INSERT ON howdah.grants FOR EACH ROW EXECUTE FUNCTION howdah.note_grants();
-- Also for rows that come by replication.
ALTER TABLE howdah.grants ENABLE ALWAYS TRIGGER first_grant;
