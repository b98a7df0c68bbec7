-- Days may be dropped again whether they are archived or not.
DELETE FROM howdah.archive_target RETURNING url
