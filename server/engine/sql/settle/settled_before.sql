-- Returns the jobs whose lease with this token was already settled by the same kind of outcome: the repeat is answered OK.
-- LATERAL with LIMIT forces look-ups by index; Postgres may plan EXISTS as a hash of the whole table (version 18 does). This
-- runs only for outcomes whose lease was not found.
-- $1 id[] $2 token[], each XOR the kind (last_token in schema/tables/jobs.sql)
WITH u AS (SELECT * FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(id, token, ordinal))
SELECT u.ordinal FROM u JOIN howdah.history_of($1::bigint[]) h ON h.id = u.id AND h.token = u.token
UNION
SELECT u.ordinal FROM u
CROSS JOIN LATERAL (
    SELECT 1 FROM howdah.scheduled s WHERE s.id = u.id AND s.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.ready r WHERE r.id = u.id AND r.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.leased l WHERE l.id = u.id AND l.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.waiting w WHERE w.id = u.id AND w.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.dead d WHERE d.id = u.id AND d.last_token = u.token
    LIMIT 1
) settled
