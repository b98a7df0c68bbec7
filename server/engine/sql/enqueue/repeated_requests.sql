-- Returns the hash and the job ids of the first call with each of these request keys. $1 key[]
SELECT key, body_hash, ids FROM howdah.request WHERE key = ANY ($1::text[])
