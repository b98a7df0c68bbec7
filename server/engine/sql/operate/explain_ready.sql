-- Returns the position of a ready job. The count scans back from the job, so that it meets live rows first. It stops at its
-- bound, and at the rank up to which all jobs were claimed, because below it the index may have many dead rows. takes_turns:
-- whether jobs of other fair keys come before this job; computed only for a job with a fair key. settled: number of jobs
-- settled in the last five full minutes and the current one, until the last summation of statistics. settled_s: seconds from
-- the first of these minutes in which a job was settled until that summation.
-- $1 type $2 rank $3 id $4 the lowest rank $5 at most $6 fair key (null: none)
SELECT (SELECT count(*) FROM (
            SELECT FROM howdah.ready r
            WHERE r.type_id = $1::integer AND r.rank >= $4::bigint AND (r.rank, r.id) < ($2::bigint, $3::bigint)
            ORDER BY r.rank DESC, r.id DESC LIMIT $5::bigint) n) AS before,
       coalesce($6::text IS NOT NULL AND EXISTS (
            SELECT FROM (
                SELECT r.options ->> 'fair_key' AS fair_key FROM howdah.ready r
                WHERE r.type_id = $1 AND r.rank >= $4 AND (r.rank, r.id) < ($2, $3)
                ORDER BY r.rank DESC, r.id DESC LIMIT $5) n
            WHERE n.fair_key <> $6), false) AS takes_turns,
       (SELECT count(*) FROM (
            SELECT FROM howdah.leased l WHERE l.type_id = t.id AND l.limited LIMIT t.max_running) n) AS running,
       CASE WHEN t.rate_per_s IS NOT NULL THEN (
            SELECT now() + least(greatest(0, 1 - (g.tokens + howdah.elapsed_s(g.refilled) * t.rate_per_s)) / t.rate_per_s, 3e9)
                           * interval '1 second'
            FROM howdah.limit_state g WHERE g.type_id = t.id AND g.limit_key = '') END AS next_token,
       b.since AS braked_since, b.failures AS braked_failures, b.next_at AS braked_next,
       (SELECT p.last FROM howdah.pull p WHERE p.type_id = t.id) AS pulled,
       coalesce(s.settled, 0) AS settled, coalesce(s.seconds, 0)::double precision AS settled_s
FROM howdah.task_type t
LEFT JOIN howdah.brake b ON b.type_id = t.id AND b.since IS NOT NULL
LEFT JOIN LATERAL (
    SELECT sum(s.succeeded + s.failed)::bigint AS settled, extract(epoch FROM u.summed - min(s.starts)) AS seconds
    FROM (SELECT nullif(summed, '-infinity') AS summed FROM howdah.statistics_sum) u
    JOIN howdah.statistics s ON s.starts >= date_trunc('minute', u.summed, 'UTC') - interval '5 minutes' AND s.starts <= u.summed
    WHERE s.type_id = t.id AND s.minutes = 1 AND s.succeeded + s.failed > 0
    GROUP BY u.summed) s ON true
WHERE t.id = $1
