-- Revokes a token, or all tokens of a principal. Increments the settings version, so that every broker reads the tokens again.
-- $1 an id, or null $2 a principal, or null
WITH revoked AS (
    UPDATE howdah.token SET revoked = now()
    WHERE revoked IS NULL AND (id = $1::text OR principal = $2::text)
    RETURNING id
), changed AS (
    UPDATE howdah.settings SET version = version + 1 WHERE EXISTS (SELECT FROM revoked)
)
SELECT id FROM revoked ORDER BY id
