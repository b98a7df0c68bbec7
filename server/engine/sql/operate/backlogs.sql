-- Counts jobs of these types that are ready, or wait for a limit or another job. It counts along the index, up to the given
-- bound. $1 type_id[] $2 at most[]
SELECT t.type_id,
       (SELECT count(*) FROM (SELECT FROM howdah.ready r WHERE r.type_id = t.type_id LIMIT t.most) counted)
       + (SELECT count(*) FROM (SELECT FROM howdah.waiting w WHERE w.type_id = t.type_id LIMIT t.most) counted) AS jobs
FROM unnest($1::integer[], $2::bigint[]) AS t(type_id, most)
