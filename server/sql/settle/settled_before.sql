-- Which of these pairs were settled already, and as the same kind of outcome: their repeat is answered OK. LATERAL … LIMIT, so
-- that each is a few index look-ups: EXISTS may be planned as a hash of the whole table (Postgres 18
-- does). This runs only for pairs that just failed.
-- $1 id[] $2 token[], each XOR the kind (last_token in schema/tables/jobs.sql)
SELECT u.ordinal FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(id, token, ordinal)
CROSS JOIN LATERAL (
    SELECT 1 FROM howdah.history h WHERE h.id = u.id AND h.token = u.token
    UNION ALL SELECT 1 FROM howdah.scheduled s WHERE s.id = u.id AND s.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.ready r WHERE r.id = u.id AND r.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.leased l WHERE l.id = u.id AND l.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.waiting w WHERE w.id = u.id AND w.last_token = u.token
    UNION ALL SELECT 1 FROM howdah.dead d WHERE d.id = u.id AND d.last_token = u.token
    LIMIT 1
) settled
