-- Like pick.sql, for the dead jobs of one error group, by id. Each part of the union reads a part of the index in order; the second
-- part is empty if $11 is the name of the group. Row comparisons keep Postgres from choosing the index without the group, with
-- which it would read all dead jobs of the type to find 20,000 of the group.
-- $1 type $2 (unused) $3 id after $4 at most $5 to $11 see `FITS` (store/job_table.rs)
WITH seen AS MATERIALIZED (
    SELECT id, {fits} AS fits FROM (
        SELECT * FROM (
            (SELECT id, created, died, priority, attempt, options, error_group FROM howdah.dead
             WHERE type_id = $1::integer AND error_group = $11::text
               AND (error_group, id) > ($11, $3::bigint) AND (error_group, id) <= ($11, $5::bigint)
             ORDER BY type_id, error_group, id LIMIT 20000)
            UNION ALL
            (SELECT id, created, died, priority, attempt, options, error_group FROM howdah.dead
             WHERE type_id = $1::integer AND error_group = howdah.error_group($11) AND howdah.error_group($11) <> $11
               AND (error_group, id) > (howdah.error_group($11), $3::bigint) AND (error_group, id) <= (howdah.error_group($11), $5::bigint)
             ORDER BY type_id, error_group, id LIMIT 20000)
        ) found
        WHERE $2::bigint IS NOT NULL ORDER BY id LIMIT 20000
    ) in_reach
),
picked AS MATERIALIZED (
    SELECT id FROM seen WHERE fits ORDER BY id LIMIT $4::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(id), 0, false FROM seen
HAVING (SELECT count(*) FROM picked) < $4::integer AND (SELECT count(*) FROM seen) = 20000
ORDER BY rank, id, picked DESC
