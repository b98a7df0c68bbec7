-- Returns the databases of this server to which the session's role may connect, for stores whose name is a pattern.
SELECT d.datname::text AS name FROM pg_catalog.pg_database d
WHERE d.datallowconn AND NOT d.datistemplate AND pg_catalog.has_database_privilege(d.oid, 'CONNECT')
ORDER BY d.datname COLLATE "C"
