-- For pgbench: inserts one task per call, for a random tenant. Each connection first caches all tables, then waits
-- for an advisory lock that starts all connections together.
\if :cold
CALL howdah_tenants.touch(:tenants, false);
SELECT pg_advisory_xact_lock_shared(:gate);
\set cold 0
\else
\set tenant random(0, :tenants - 1)
SELECT howdah_tenants.add_task(:tenant, decode(repeat('5a', :bytes), 'hex'));
\endif
