-- How many jobs of these types are ready, or wait for a limit or another job. It counts along the index, no further than
-- asked. $1 type_id[] $2 at most[]
SELECT t.type_id,
       (SELECT count(*) FROM (SELECT FROM howdah.ready r WHERE r.type_id = t.type_id LIMIT t.most) counted)
       + (SELECT count(*) FROM (SELECT FROM howdah.waiting w WHERE w.type_id = t.type_id LIMIT t.most) counted) AS jobs
FROM unnest($1::integer[], $2::bigint[]) AS t(type_id, most)
