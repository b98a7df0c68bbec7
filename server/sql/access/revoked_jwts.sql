-- JSON Web Tokens that were revoked: a name, and until when tokens of that principal were issued (null: it names a token).
SELECT name, CASE WHEN of_principal THEN floor(extract(epoch FROM revoked))::bigint END AS issued_until
FROM howdah.revoked_jwt WHERE until > now()
