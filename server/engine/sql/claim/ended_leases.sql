-- Returns the leases that a broker remembers but no longer has. ending: moved (another broker has taken the lease over),
-- settled (the worker sent an outcome with this token), timed_out (a broker ended it after its deadline), cancelled, or
-- lost in another way. LATERAL … OFFSET 0 and LIMIT force look-ups by index, as in settled_before.sql.
-- $1 id[] $2 token[] $3 the broker's number, and its former numbers
WITH u AS MATERIALIZED (
    SELECT u.id, u.token, l.broker_id
    FROM unnest($1::bigint[], $2::bigint[]) AS u(id, token)
    LEFT JOIN LATERAL (SELECT l.broker_id FROM howdah.leased l WHERE l.id = u.id AND l.token = u.token OFFSET 0) l ON true
    WHERE l.broker_id IS NULL OR l.broker_id <> ALL ($3::integer[])
),
finished AS MATERIALIZED (SELECT h.id, h.token, h.outcome FROM howdah.history_of(ARRAY(SELECT id FROM u)) h)
SELECT u.id, u.token, CASE
    WHEN u.broker_id IS NOT NULL THEN 'moved'
    ELSE coalesce(
        (SELECT CASE t.last_token # u.token WHEN 5 THEN 'timed_out' WHEN 6 THEN 'lost' ELSE 'settled' END FROM (
            SELECT h.token AS last_token FROM finished h WHERE h.id = u.id
            UNION ALL SELECT s.last_token FROM howdah.scheduled s WHERE s.id = u.id
            UNION ALL SELECT r.last_token FROM howdah.ready r WHERE r.id = u.id
            UNION ALL SELECT l.last_token FROM howdah.leased l WHERE l.id = u.id
            UNION ALL SELECT w.last_token FROM howdah.waiting w WHERE w.id = u.id
            UNION ALL SELECT d.last_token FROM howdah.dead d WHERE d.id = u.id) t
         WHERE (t.last_token # u.token) BETWEEN 0 AND 7 LIMIT 1),
        (SELECT 'cancelled' FROM finished h WHERE h.id = u.id AND h.outcome = 'cancelled' LIMIT 1),
        'lost') END AS ending
FROM u
