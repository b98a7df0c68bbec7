-- One bounded scan step through the ready jobs of a type, along its index. Sets the priority (null: unchanged) of jobs of a
-- type, and computes ranks with the current step of the type. Rows that another transaction has locked are counted and skipped.
-- $1 type $2 priority $3 rank after $4 id after $5 rows at most
WITH type AS MATERIALIZED (
    SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1::integer), howdah.default_step()) AS step
),
seen AS MATERIALIZED (
    SELECT ctid, id, rank, type_id, priority, coalesce($2::smallint, priority) AS new_priority, options
    FROM howdah.ready
    WHERE type_id = $1::integer AND (rank, id) > ($3::bigint, $4::bigint)
    ORDER BY type_id, rank, id LIMIT $5::integer
),
stale AS MATERIALIZED (
    SELECT l.ctid FROM seen l
    WHERE type_id = $1 AND (priority <> new_priority
       OR (new_priority <> 0 AND howdah.step_of(options) <> (SELECT step FROM type)))
),
locked AS MATERIALIZED (
    SELECT ctid FROM howdah.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM stale)) FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE howdah.ready j
    SET rank = howdah.reranked(rank, priority, options, coalesce($2, priority), (SELECT step FROM type)),
        priority = coalesce($2, priority),
        options = howdah.with_step(options, coalesce($2, priority), (SELECT step FROM type))
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM locked))
    RETURNING id, rank
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT count(*) FROM stale) AS stale, (SELECT min(rank) FROM moved) AS lowest_rank,
       ARRAY(SELECT id FROM moved LIMIT 10) AS first_ids,
       (SELECT count(*) FROM seen) AS seen,
       (SELECT rank FROM seen ORDER BY rank DESC, id DESC LIMIT 1) AS last_rank,
       (SELECT id FROM seen ORDER BY rank DESC, id DESC LIMIT 1) AS last_id
