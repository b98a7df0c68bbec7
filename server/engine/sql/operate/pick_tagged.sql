-- Like pick.sql, for jobs with the tag of the conditions, by id. A call reads at most 20,000 entries of the index of tags, and looks
-- up their jobs in one table until the page is full. OFFSET 0 and IS TRUE force look-ups by id. An entry may belong to a job in
-- another state, or to one that no longer has the tag.
-- $1 type $2 (unused) $3 id after $4 at most $5 to $11 see `FITS` (store/job_table.rs)
WITH entry AS MATERIALIZED (
    SELECT id AS job_id FROM howdah.job_tag
    WHERE (hash, type_id, id) > (hashtext($7::jsonb ->> 'tag'), $1::integer, $3::bigint)
      AND (hash, type_id, id) <= (hashtext($7::jsonb ->> 'tag'), $1::integer, $5::bigint) AND $2::bigint IS NOT NULL
    ORDER BY hash, type_id, id LIMIT 20000
),
picked AS MATERIALIZED (
    SELECT job_id AS id FROM (SELECT DISTINCT job_id FROM entry ORDER BY job_id) tagged
    CROSS JOIN LATERAL (
        SELECT {fits} AS fits
        FROM (SELECT * FROM howdah.{table} j WHERE j.id = job_id AND (j.type_id = $1::integer) IS TRUE OFFSET 0) in_reach
    ) seen
    WHERE fits ORDER BY job_id LIMIT $4::integer
)
SELECT id, 0::bigint AS rank, true AS picked FROM picked
UNION ALL
SELECT max(job_id), 0, false FROM entry
HAVING (SELECT count(*) FROM picked) < $4::integer AND (SELECT count(*) FROM entry) = 20000
ORDER BY rank, id, picked DESC
