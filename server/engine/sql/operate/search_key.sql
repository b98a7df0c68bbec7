-- Returns ids of the jobs of a key, the newest first: the holder of the key, its successor, and dead and finished jobs that had
-- the key. Hash and type are given as a range of rows. With equalities, Postgres may use an index by id or by type, and read
-- many jobs to find those with the key.
-- $1 type $2 key $3 id before (0: the newest) $4 at most
WITH bound AS (SELECT CASE WHEN $3::bigint = 0 THEN 9223372036854775807 ELSE $3 END AS before)
SELECT id FROM (
    (SELECT job_id AS id FROM howdah.job_key WHERE type_id = $1::integer AND key = $2::text)
    UNION
    (SELECT next_id FROM howdah.job_key WHERE type_id = $1::integer AND key = $2::text AND next_id IS NOT NULL)
    UNION
    (SELECT id FROM howdah.dead
     WHERE (hashtext(key), type_id, id) < (hashtext($2::text), $1::integer, (SELECT before FROM bound))
       AND (hashtext(key), type_id, id) >= (hashtext($2::text), $1::integer, 0::bigint) AND key = $2
     ORDER BY hashtext(key) DESC, type_id DESC, id DESC LIMIT $4::integer)
    UNION
    (SELECT id FROM howdah.history
     WHERE (hashtext(key), type_id, id) < (hashtext($2::text), $1::integer, (SELECT before FROM bound))
       AND (hashtext(key), type_id, id) >= (hashtext($2::text), $1::integer, 0::bigint) AND key = $2
     ORDER BY hashtext(key) DESC, type_id DESC, id DESC LIMIT $4::integer)
) found
WHERE id < (SELECT before FROM bound)
ORDER BY id DESC LIMIT $4::integer
