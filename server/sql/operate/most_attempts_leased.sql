-- One bounded scan step for the jobs with the most attempts: reads the next 20,000 leased jobs, by id, and returns jobs of the
-- type that have started. There is no index by type, and none by attempts, because each claim would pay for it. The last row
-- says how far the step came, and how many jobs it read; no row means that nothing is left.
-- $1 type $2 (unused) $3 id after $4 jobs at most
WITH looked AS MATERIALIZED (
    SELECT id, type_id, attempt FROM howdah.leased
    WHERE id > $3::bigint AND $2::bigint IS NOT NULL
    ORDER BY id LIMIT 20000
)
(SELECT id, 0::bigint AS rank, attempt, NULL::bigint AS scanned_count FROM looked WHERE type_id = $1::integer AND attempt > 0 ORDER BY attempt DESC, id LIMIT $4::integer)
UNION ALL
(SELECT id, 0::bigint AS rank, NULL, (SELECT count(*) FROM looked) FROM looked ORDER BY id DESC LIMIT 1)
