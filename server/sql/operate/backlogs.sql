-- How many jobs of these types wait for a worker: ready, or held back by a limit or another job. Counts no
-- further than asked, along the index. $1 type_id[] $2 at most[]
SELECT t.type_id,
       (SELECT count(*) FROM (SELECT FROM howdah.ready r WHERE r.type_id = t.type_id LIMIT t.most) counted)
       + (SELECT count(*) FROM (SELECT FROM howdah.waiting w WHERE w.type_id = t.type_id LIMIT t.most) counted) AS jobs
FROM unnest($1::integer[], $2::bigint[]) AS t(type_id, most)
