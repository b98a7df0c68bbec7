-- Leases of coordinated jobs whose brokers have expired. rescue.sql leaves them to settle_nack.sql, which does what follows
-- from their end. With $3, also leases of jobs that free their key. Locked ones are found again later.
-- $1 at most $2 the broker that asks $3 those that free their key too
SELECT id, token, broker_id FROM howdah.leased
WHERE (options -> 'coordinated' IS NOT NULL OR $3::boolean AND key IS NOT NULL AND attempt >= max_attempts)
  AND broker_id IS NOT NULL
  AND broker_id NOT IN (SELECT id FROM howdah.broker WHERE expires > now())
  AND EXISTS (SELECT FROM howdah.broker WHERE id = $2::integer AND expires > now())
LIMIT $1::integer
FOR UPDATE SKIP LOCKED
