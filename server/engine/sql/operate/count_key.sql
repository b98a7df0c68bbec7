-- Counts the jobs that search_key finds, up to a bound. $1 type $2 key $3 at most
SELECT least($3::bigint,
    (SELECT count(*) FROM howdah.job_key WHERE type_id = $1::integer AND key = $2::text)
    + (SELECT count(*) FROM (SELECT FROM howdah.dead WHERE hashtext(key) = hashtext($2::text) AND type_id = $1::integer AND key = $2 LIMIT $3) d)
    + (SELECT count(*) FROM (SELECT FROM howdah.history WHERE hashtext(key) = hashtext($2::text) AND type_id = $1::integer AND key = $2 LIMIT $3) h)) AS jobs
