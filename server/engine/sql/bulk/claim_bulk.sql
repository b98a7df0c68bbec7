-- Makes this broker the owner of a bulk operation that is due and that no other live broker owns. Two brokers never take the
-- same bulk operation. The first batch of a new round resets the counts of skipped and failed jobs; until then, operators see
-- the counts of the previous round.
-- $1 this broker
WITH due AS (
    SELECT b.id FROM howdah.bulk b
    WHERE b.state = 'running' AND b.next_at <= now()
      AND (b.owner IS NULL OR b.owner = $1::integer
           OR NOT EXISTS (SELECT FROM howdah.broker o WHERE o.id = b.owner AND o.expires > now()))
    ORDER BY b.next_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE howdah.bulk b SET owner = $1,
    skipped = CASE WHEN at_state IS NULL THEN 0 ELSE skipped END,
    failed = CASE WHEN at_state IS NULL THEN 0 ELSE failed END,
    problem = CASE WHEN at_state IS NULL THEN '' ELSE problem END
FROM due WHERE b.id = due.id
RETURNING b.*
