-- Returns whether every living broker uses this version of the settings, or a later one. $1 version
SELECT NOT EXISTS (SELECT FROM howdah.broker WHERE expires > now() AND coalesce(settings_version, 0) < $1::bigint)
