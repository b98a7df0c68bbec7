-- Turns the archive off: brokers may drop day partitions that are not archived.
DELETE FROM howdah.archive_target RETURNING url
