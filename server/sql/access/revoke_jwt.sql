-- Revokes a JSON Web Token, or all of a principal that were issued until now, unless too many are revoked. The new version makes
-- every broker read what is revoked again.
-- $1 the name of the token or the principal $2 whether it is a principal $3 for how many ms this matters $4 the most that are kept
WITH gone AS (
    DELETE FROM howdah.revoked_jwt WHERE until < now()
), changed AS (
    UPDATE howdah.settings SET version = version + 1
    WHERE (SELECT count(*) FROM howdah.revoked_jwt WHERE until > now()) < $4::bigint
    RETURNING version
)
INSERT INTO howdah.revoked_jwt (name, of_principal, until)
SELECT $1::text, $2::boolean, now() + $3::bigint * interval '1 millisecond' FROM changed
ON CONFLICT (name, of_principal) DO UPDATE SET revoked = now(), until = excluded.until
RETURNING name AS id
