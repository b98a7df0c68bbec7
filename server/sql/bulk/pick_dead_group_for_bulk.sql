-- Like pick_dead_for_bulk.sql, for one error group. Each part of the union reads a part of the index in order. Row comparisons
-- keep Postgres from choosing the index without the group, with which it would read all dead jobs of the type to find 20,000 of
-- the group.
-- $1 type $2 id after $3 at most $4 last id $5 died before this time (null: any time) $6 the group, or an error of it
WITH seen AS MATERIALIZED (
    SELECT id, died FROM (
        (SELECT id, died FROM howdah.dead
         WHERE type_id = $1::integer AND error_group = $6::text
           AND (error_group, id) > ($6, $2::bigint) AND (error_group, id) <= ($6, $4::bigint)
         ORDER BY type_id, error_group, id LIMIT 20000)
        UNION
        (SELECT id, died FROM howdah.dead
         WHERE type_id = $1::integer AND error_group = howdah.error_group($6)
           AND (error_group, id) > (howdah.error_group($6), $2::bigint) AND (error_group, id) <= (howdah.error_group($6), $4::bigint)
         ORDER BY type_id, error_group, id LIMIT 20000)
    ) found
    ORDER BY id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT id FROM seen WHERE $5::timestamptz IS NULL OR died <= $5 ORDER BY id LIMIT $3::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen HAVING max(id) IS NOT NULL AND (SELECT count(*) FROM picked) < $3::integer
ORDER BY id, picked DESC
