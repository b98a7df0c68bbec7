-- Returns ids of jobs that may have a tag, the newest first; a job may come several times. The caller checks the jobs
-- themselves: they may have other tags or another type by now, or a tag with the same hash. It is one walk through the index of
-- each day, and ends with the page, however many jobs have the tag.
-- $1 type $2 tag $3 id before (0: the newest) $4 at most
SELECT id FROM howdah.job_tag
WHERE (hash, type_id, id) < (hashtext($2::text), $1::integer, CASE WHEN $3::bigint = 0 THEN 9223372036854775807 ELSE $3 END)
  AND (hash, type_id, id) >= (hashtext($2::text), $1::integer, 0::bigint)
ORDER BY hash DESC, type_id DESC, id DESC LIMIT $4::integer
