-- What the first call with each of these request keys stored.
SELECT key, body_hash, ids FROM howdah.request WHERE key = ANY ($1::text[])
