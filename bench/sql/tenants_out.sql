-- For pgbench: moves all tasks of one tenant after the other. Each connection starts at another tenant. Each
-- first caches all tables, then waits at the gate.
\if :cold
CALL howdah_tenants.touch(:tenants, true);
SELECT pg_advisory_xact_lock_shared(:gate);
\set tenant :client_id
\set cold 0
\else
\set tenant (:tenant + :clients) % :tenants
SELECT howdah_tenants.move_tasks(:tenant);
\endif
