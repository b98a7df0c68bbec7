-- Takes a day for a run. $1 day $2 run $3 who $4 ms until others may take it $5 URL of the archive
SELECT state, generation, url, coalesce(manifest::text, '') AS manifest,
       coalesce(rewrite::text, '') AS rewrite
FROM howdah.take_day($1::text::date, $2, $3, $4::bigint * interval '1 ms', $5)
