-- Returns ids of jobs of a type that a selection includes, in the order of an index. A call reads at most 20,000 rows; in a table
-- without an index by type, rows of other types count too. If it selects fewer jobs than requested and more rows follow, it also
-- returns the last row that it read, with picked false: the next call continues after that row. This row is read separately, so
-- that a full page ends the scan early.
-- $1 type $2 and $3 position $4 at most $5 to $11 see `FITS` (store/job_table.rs)
WITH picked AS MATERIALIZED (
    SELECT id, rank FROM (
        SELECT id, {rank} AS rank, {fits} AS fits
        FROM (SELECT * FROM howdah.{table} WHERE {after} ORDER BY {scan} LIMIT 20000) in_reach
    ) seen
    WHERE fits ORDER BY {order} LIMIT $4::integer
)
SELECT id, rank, true AS picked FROM picked
UNION ALL
(SELECT id, {rank}, false FROM howdah.{table}
 WHERE (SELECT count(*) FROM picked) < $4::integer AND {after} ORDER BY {scan} OFFSET 19999 LIMIT 1)
ORDER BY rank, id, picked DESC
