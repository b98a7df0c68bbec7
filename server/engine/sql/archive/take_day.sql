-- Reserves a day for an archive run. $1 day $2 run $3 broker $4 ms until another run may take the day $5 URL of the archive
SELECT state, generation, url, coalesce(manifest::text, '') AS manifest,
       coalesce(rewrite::text, '') AS rewrite
FROM howdah.take_day($1::text::date, $2, $3, $4::bigint * interval '1 ms', $5)
