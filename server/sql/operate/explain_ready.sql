-- Where a ready job stands. It looks back from the job, so that it meets live rows first, and stops after so many of them; and
-- at the rank up to which everything was claimed, because dead rows may lie below.
-- $1 type $2 rank $3 id $4 the lowest rank $5 at most
SELECT (SELECT count(*) FROM (
            SELECT FROM howdah.ready r
            WHERE r.type_id = $1::integer AND r.rank >= $4::bigint AND (r.rank, r.id) < ($2::bigint, $3::bigint)
            ORDER BY r.rank DESC, r.id DESC LIMIT $5::bigint) n) AS before,
       (SELECT count(*) FROM (
            SELECT FROM howdah.leased l WHERE l.type_id = t.id AND l.limited LIMIT t.max_running) n) AS running,
       CASE WHEN t.rate_per_s IS NOT NULL THEN (
            SELECT now() + greatest(0, 1 - (g.tokens + extract(epoch FROM now() - g.refilled)::double precision * t.rate_per_s))
                           / t.rate_per_s * interval '1 second'
            FROM howdah.limit_state g WHERE g.type_id = t.id AND g.limit_key = '') END AS next_token
FROM howdah.task_type t WHERE t.id = $1
