-- Of the leases that a broker believes its workers to hold, those that it does not have any more, and what became of each:
-- moved (another broker has taken it over), settled (with this token, so by its worker; as whatever kind), timed_out (whichever
-- broker found that), cancelled, or lost in another way.
-- LATERAL … OFFSET 0 and LIMIT make each an index look-up, as in settled_before.sql.
-- $1 id[] $2 token[] $3 the broker's number, and those that it had before
SELECT u.id, u.token, CASE
    WHEN l.broker_id IS NOT NULL THEN 'moved'
    ELSE coalesce(
        (SELECT CASE t.last_token # u.token WHEN 5 THEN 'timed_out' ELSE 'settled' END FROM (
            SELECT h.token AS last_token FROM howdah.history h WHERE h.id = u.id
            UNION ALL SELECT s.last_token FROM howdah.scheduled s WHERE s.id = u.id
            UNION ALL SELECT r.last_token FROM howdah.ready r WHERE r.id = u.id
            UNION ALL SELECT l.last_token FROM howdah.leased l WHERE l.id = u.id
            UNION ALL SELECT w.last_token FROM howdah.waiting w WHERE w.id = u.id
            UNION ALL SELECT d.last_token FROM howdah.dead d WHERE d.id = u.id) t
         WHERE (t.last_token # u.token) BETWEEN 0 AND 7 LIMIT 1),
        (SELECT 'cancelled' FROM howdah.history h WHERE h.id = u.id AND h.outcome = 'cancelled' LIMIT 1),
        'lost') END AS ending
FROM unnest($1::bigint[], $2::bigint[]) AS u(id, token)
LEFT JOIN LATERAL (SELECT l.broker_id FROM howdah.leased l WHERE l.id = u.id AND l.token = u.token OFFSET 0) l ON true
WHERE l.broker_id IS NULL OR l.broker_id <> ALL ($3::integer[])
