-- A step of a look for the jobs with the most attempts: of the next 20,000 ready jobs of a type, as they will run, those that have
-- started. An index of them would have an entry more with each retry, for a question that is seldom asked. A retry keeps its rank, so those
-- with many attempts are among the first. The last row says how far the step came, and how many it looked at; without a row there is
-- nothing left. $1 type $2 rank after $3 id after $4 jobs at most
WITH looked AS MATERIALIZED (
    SELECT id, rank, attempt FROM howdah.ready
    WHERE type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)
    ORDER BY type_id, rank, id LIMIT 20000
)
(SELECT id, rank, attempt, NULL::bigint AS looked_at FROM looked WHERE attempt > 0 ORDER BY attempt DESC, id LIMIT $4::integer)
UNION ALL
(SELECT id, rank, NULL, (SELECT count(*) FROM looked) FROM looked ORDER BY rank DESC, id DESC LIMIT 1)
