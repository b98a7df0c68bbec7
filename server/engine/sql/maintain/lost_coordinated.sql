-- Returns leases whose brokers have expired, of jobs with the mark `coordinated` (their end affects other jobs). rescue.sql
-- leaves these jobs to settle_nack.sql and the functions called after it, which carry out the consequences of the end. Locked
-- leases are skipped, and found by a later call.
-- $1 at most $2 the broker that asks $3 also leases of jobs that have a key and no attempts left, so that their key is freed
SELECT id, token, broker_id FROM howdah.leased
WHERE (options -> 'coordinated' IS NOT NULL OR $3::boolean AND key IS NOT NULL AND attempt >= max_attempts)
  AND broker_id IS NOT NULL
  AND broker_id NOT IN (SELECT id FROM howdah.broker WHERE expires > now())
  AND EXISTS (SELECT FROM howdah.broker WHERE id = $2::integer AND expires > now())
LIMIT $1::integer
FOR UPDATE SKIP LOCKED
