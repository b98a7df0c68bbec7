-- Revokes a JSON Web Token, or all tokens of a principal that were issued until now, unless too many revocations are stored.
-- Increments the settings version, so that every broker reads the revocations again.
-- $1 the name of the token or the principal $2 whether it is a principal $3 ms until the revocation expires $4 maximum
-- number of revocations
WITH changed AS (
    UPDATE howdah.settings SET version = version + 1
    WHERE (SELECT count(*) FROM howdah.revoked_jwt WHERE until > now()) < $4::bigint
    RETURNING version
)
INSERT INTO howdah.revoked_jwt (name, of_principal, until)
SELECT $1::text, $2::boolean, now() + $3::bigint * interval '1 millisecond' FROM changed
ON CONFLICT (name, of_principal) DO UPDATE SET revoked = now(), until = excluded.until
RETURNING name AS id
