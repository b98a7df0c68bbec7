-- Deletes expired brokers that have no leases.
DELETE FROM howdah.broker b
WHERE b.expires <= now() AND NOT EXISTS (SELECT FROM howdah.leased l WHERE l.broker_id = b.id)
