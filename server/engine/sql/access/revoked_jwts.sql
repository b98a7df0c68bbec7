-- Returns revocations of JSON Web Tokens. A row with a time revokes all tokens of a principal that were issued until then. A
-- row without a time revokes one token.
SELECT name, CASE WHEN of_principal THEN floor(extract(epoch FROM revoked))::bigint END AS issued_until
FROM howdah.revoked_jwt WHERE until > now()
