-- Stores a token, unless $7 tokens are stored already. Increments the settings version, so that every broker reads the tokens
-- again.
-- $1 id $2 hash $3 principal $4 scopes $5 created_by $6 lifetime in ms (null: forever) $7 maximum number of tokens
WITH changed AS (
    UPDATE howdah.settings SET version = version + 1
    WHERE (SELECT count(*) FROM howdah.token
           WHERE revoked IS NULL AND (expires IS NULL OR expires > now())) < $7::bigint
    RETURNING version
)
INSERT INTO howdah.token (id, hash, principal, scopes, created_by, expires)
SELECT $1::text, $2::bytea, $3::text, $4::text[], $5::text, now() + $6::bigint * interval '1 millisecond' FROM changed
RETURNING id, principal, scopes, created_by,
          (extract(epoch FROM created) * 1e6)::bigint AS created,
          (extract(epoch FROM expires) * 1e6)::bigint AS expires,
          (extract(epoch FROM revoked) * 1e6)::bigint AS revoked
