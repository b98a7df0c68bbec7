-- One bounded scan step for the jobs with the most attempts: reads 20,000 jobs of one state, and returns jobs of the type that
-- have started. No index has the attempts, and only the table ready has an index by type: each claim and retry would pay for
-- more indexes, and this query is rare. Jobs with many attempts are old, so the scan reads them early: a retry keeps its rank,
-- and ids are in the order of creation. The last row says how far it came and how many jobs it read; no row: nothing is left.
-- $1 type $2 and $3 position $4 jobs at most
WITH looked AS MATERIALIZED (
    SELECT id, {rank} AS rank, type_id, attempt FROM howdah.{table} WHERE {after} ORDER BY {scan} LIMIT 20000
)
(SELECT id, rank, attempt, NULL::bigint AS scanned_count FROM looked WHERE {of_type} AND attempt > 0
 ORDER BY attempt DESC, id LIMIT $4::integer)
UNION ALL
(SELECT id, rank, NULL, (SELECT count(*) FROM looked) FROM looked ORDER BY rank DESC, id DESC LIMIT 1)
