-- One bounded scan step for the jobs with the most attempts: reads the next 20,000 ready jobs of a type, in the order of rank,
-- and returns jobs that have started. An index of started jobs would get one more entry with each retry, for a rare query. A
-- retry keeps its rank, so jobs with many attempts are among the first. The last row says how far the step came, and how many
-- jobs it read; no row means that nothing is left. $1 type $2 rank after $3 id after $4 jobs at most
WITH looked AS MATERIALIZED (
    SELECT id, rank, attempt FROM howdah.ready
    WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
    ORDER BY type_id, rank, id LIMIT 20000
)
(SELECT id, rank, attempt, NULL::bigint AS scanned_count FROM looked WHERE attempt > 0 ORDER BY attempt DESC, id LIMIT $4::integer)
UNION ALL
(SELECT id, rank, NULL, (SELECT count(*) FROM looked) FROM looked ORDER BY rank DESC, id DESC LIMIT 1)
