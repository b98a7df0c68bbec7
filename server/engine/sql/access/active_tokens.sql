-- Returns valid tokens. Brokers keep all of them in memory, so that a call costs no statement.
SELECT id, hash, principal, scopes, (extract(epoch FROM expires - now()) * 1000)::bigint AS ends_in_ms
FROM howdah.token
WHERE revoked IS NULL AND (expires IS NULL OR expires > now())
