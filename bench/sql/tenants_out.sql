-- For pgbench: moves all tasks to history, tenant by tenant. Each connection starts at another tenant. It first
-- caches all tables, then waits for an advisory lock that starts all connections together.
\if :cold
CALL howdah_tenants.touch(:tenants, true);
SELECT pg_advisory_xact_lock_shared(:gate);
\set tenant :client_id
\set cold 0
\else
\set tenant (:tenant + :clients) % :tenants
SELECT howdah_tenants.move_tasks(:tenant);
\endif
