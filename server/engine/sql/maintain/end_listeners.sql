-- Ends the LISTEN sessions of brokers whose rows have expired. A broker that is frozen, or whose machine is gone, does not read
-- its notifications. Then its session waits inside a transaction to send them, and the snapshot of the session holds back
-- VACUUM. Sessions of other roles are ended only if this role may do so. MATERIALIZED makes Postgres check all conditions
-- before it ends a session.
WITH listening AS MATERIALIZED (
    SELECT l.id, a.pid, a.usesysid
    FROM pg_stat_activity a
    CROSS JOIN LATERAL (SELECT substring(a.application_name FROM '^howdah listener ([0-9]{1,9}) ')::integer AS id) l
    WHERE a.datname = current_database() AND a.application_name = left('howdah listener ' || l.id || ' ' || rtrim('howdah.', '.'), 63)
),
left_behind AS MATERIALIZED (
    SELECT l.id, l.pid FROM listening l JOIN pg_roles r ON r.oid = l.usesysid
    WHERE NOT EXISTS (SELECT FROM howdah.broker b WHERE b.id = l.id AND b.expires > now())
      AND pg_has_role(l.usesysid, 'USAGE') AND (NOT r.rolsuper OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
)
SELECT id, pid, pg_terminate_backend(pid) FROM left_behind
