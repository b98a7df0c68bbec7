-- For pgbench: enqueues one job per call, of a random tenant, with Howdah's SQL function. Each connection first
-- enqueues one job to cache its plans, then waits for an advisory lock that starts all connections together. The
-- payload begins with eight 0xff bytes, which mark a job that counts as due at the start of the measurement.
\if :cold
SELECT howdah.enqueue(:type::varchar, decode(repeat('ff', 8) || repeat('5a', :bytes - 8), 'hex'), fair_key => 'tenant-' || :client_id::text);
SELECT pg_advisory_xact_lock_shared(:gate);
\set cold 0
\else
\set tenant random(0, :tenants - 1)
SELECT howdah.enqueue(:type::varchar, decode(repeat('ff', 8) || repeat('5a', :bytes - 8), 'hex'), fair_key => 'tenant-' || :tenant::text);
\endif
