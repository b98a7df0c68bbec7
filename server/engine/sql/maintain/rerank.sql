-- One bounded scan step through the jobs of one state. Computes the ranks of jobs of a type with the current step of the type.
-- Rows that another transaction has locked are counted and skipped. $1 type $2 and $3 position $4 rows at most
WITH type AS MATERIALIZED (
    SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1::integer), howdah.default_step()) AS step
),
seen AS MATERIALIZED (
    SELECT ctid, id, rank, type_id, priority, options
    FROM howdah.{table}
    WHERE {after}
    ORDER BY {scan} LIMIT $4::integer
),
stale AS MATERIALIZED (
    SELECT l.ctid FROM seen l
    WHERE type_id = $1 AND priority <> 0 AND howdah.step_of(options) <> (SELECT step FROM type)
),
locked AS MATERIALIZED (
    SELECT ctid FROM howdah.{table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM stale)) FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE howdah.{table} j
    SET rank = howdah.reranked(rank, priority, options, priority, (SELECT step FROM type)),
        options = howdah.with_step(options, priority, (SELECT step FROM type))
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM locked))
    RETURNING rank
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT count(*) FROM stale) AS stale, (SELECT min(rank) FROM moved) AS lowest_rank,
       (SELECT count(*) FROM seen) AS seen,
       (SELECT rank FROM seen ORDER BY {last} LIMIT 1) AS last_rank,
       (SELECT id FROM seen ORDER BY {last} LIMIT 1) AS last_id
