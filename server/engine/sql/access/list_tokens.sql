-- Returns a page of tokens, by id, without their hashes. $1 after this id $2 whether to include expired and revoked tokens $3
-- rows at most
SELECT id, principal, scopes, created_by,
       (extract(epoch FROM created) * 1e6)::bigint AS created,
       (extract(epoch FROM expires) * 1e6)::bigint AS expires,
       (extract(epoch FROM revoked) * 1e6)::bigint AS revoked
FROM howdah.token
WHERE id > $1::text AND ($2::boolean OR (revoked IS NULL AND (expires IS NULL OR expires > now())))
ORDER BY id LIMIT $3::integer
