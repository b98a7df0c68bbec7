-- Changes the priority of jobs that are not finished, in any state; for running jobs it counts from their next attempt on. A
-- job that moves between two tables meanwhile is missed, so the caller searches missing jobs again.
-- $1 id[] (sorted, unique) $2 priority $3 only of these types (null: of any)
WITH from_ready AS (
    UPDATE howdah.ready
    SET rank = howdah.reranked(rank, priority, options, $2::smallint, howdah.rank_step(type_id)),
        priority = $2, options = howdah.with_step(options, $2, howdah.rank_step(type_id))
    WHERE id = ANY ($1::bigint[]) AND ($3::integer[] IS NULL OR type_id = ANY ($3::integer[]))
    RETURNING id, type_id, rank
),
from_leased AS (
    UPDATE howdah.leased
    SET rank = howdah.reranked(rank, priority, options, $2, howdah.rank_step(type_id)),
        priority = $2, options = howdah.with_step(options, $2, howdah.rank_step(type_id))
    WHERE id = ANY ($1) AND ($3 IS NULL OR type_id = ANY ($3))
    RETURNING id, type_id
),
from_scheduled AS (
    UPDATE howdah.scheduled
    SET rank = howdah.reranked(rank, priority, options, $2, howdah.rank_step(type_id)),
        priority = $2, options = howdah.with_step(options, $2, howdah.rank_step(type_id))
    WHERE id = ANY ($1) AND ($3 IS NULL OR type_id = ANY ($3))
    RETURNING id, type_id
),
from_waiting AS (
    UPDATE howdah.waiting
    SET rank = howdah.reranked(rank, priority, options, $2, howdah.rank_step(type_id)),
        priority = $2, options = howdah.with_step(options, $2, howdah.rank_step(type_id))
    WHERE id = ANY ($1) AND ($3 IS NULL OR type_id = ANY ($3))
    RETURNING id, type_id
)
SELECT id, type_id, rank FROM from_ready
UNION ALL SELECT id, type_id, NULL FROM from_leased
UNION ALL SELECT id, type_id, NULL FROM from_scheduled
UNION ALL SELECT id, type_id, NULL FROM from_waiting
