-- Counts the entries that search_tag finds, up to a bound. $1 type $2 tag $3 at most
SELECT count(*) AS jobs FROM (
    SELECT FROM howdah.job_tag WHERE hash = hashtext($2::text) AND type_id = $1::integer LIMIT $3::bigint) t
