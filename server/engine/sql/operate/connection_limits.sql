-- Returns limits on connections, and open connections, as far as this role may know. -1 means no limit; limits of roles and
-- databases do not apply to superusers. numbackends also counts sessions of other roles, which pg_stat_activity hides.
SELECT r.rolname AS role, CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END AS of_role,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid AND a.backend_type = 'client backend') AS in_role,
       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END AS of_database,
       (SELECT coalesce(sum(s.numbackends), 0) FROM pg_stat_database s WHERE s.datid = d.oid)::bigint AS in_database,
       current_setting('max_connections')::integer - CASE WHEN r.rolsuper THEN 0 ELSE
           current_setting('superuser_reserved_connections')::integer END AS of_server,
       (SELECT coalesce(sum(s.numbackends), 0) FROM pg_stat_database s)::bigint AS in_server
FROM pg_roles r, pg_database d
WHERE r.rolname = session_user AND d.datname = current_database()
