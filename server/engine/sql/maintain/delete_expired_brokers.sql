-- Deletes expired brokers that have no leases. Locked rows are skipped, and deleted by a later call.
DELETE FROM howdah.broker WHERE id = ANY (ARRAY(
    SELECT b.id FROM howdah.broker b
    WHERE b.expires <= now() AND NOT EXISTS (SELECT FROM howdah.leased l WHERE l.broker_id = b.id)
    FOR UPDATE SKIP LOCKED))
