-- One bounded scan step through the jobs of one state. Sets the priority (null: unchanged) of jobs of a type, and computes ranks
-- with the current step of the type. Rows that another transaction has locked are counted and skipped.
-- $1 type $2 and $3 position $4 priority $5 rows at most
WITH type AS MATERIALIZED (
    SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1::integer), howdah.default_step()) AS step
),
seen AS MATERIALIZED (
    SELECT ctid, id, rank, type_id, priority, coalesce($4::smallint, priority) AS new_priority, options
    FROM howdah.{table}
    WHERE {after}
    ORDER BY {scan} LIMIT $5::integer
),
stale AS MATERIALIZED (
    SELECT l.ctid FROM seen l
    WHERE type_id = $1 AND (priority <> new_priority
       OR (new_priority <> 0 AND howdah.step_of(options) <> (SELECT step FROM type)))
),
locked AS MATERIALIZED (
    SELECT ctid FROM howdah.{table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM stale)) FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE howdah.{table} j
    SET rank = howdah.reranked(rank, priority, options, coalesce($4, priority), (SELECT step FROM type)),
        priority = coalesce($4, priority),
        options = howdah.with_step(options, coalesce($4, priority), (SELECT step FROM type))
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM locked))
    RETURNING id, rank
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT count(*) FROM stale) AS stale, (SELECT min(rank) FROM moved) AS lowest_rank,
       ARRAY(SELECT id FROM moved LIMIT 10) AS first_ids,
       (SELECT count(*) FROM seen) AS seen,
       (SELECT rank FROM seen ORDER BY {last} LIMIT 1) AS last_rank,
       (SELECT id FROM seen ORDER BY {last} LIMIT 1) AS last_id
