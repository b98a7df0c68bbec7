-- How far jobs have come: into options, so that it goes wherever the job does. What a report does not say
-- stays; a checkpoint that is null is removed. A stale token changes nothing.
-- $1 id[] (sorted, unique) $2 token[] $3 what to set in options (jsonb[])
UPDATE howdah.leased
SET options = (coalesce(options, '{}')
               || ($3::jsonb[])[width_bucket(id, $1::bigint[])]
               || jsonb_build_object('progress_us', (extract(epoch FROM now()) * 1000000)::bigint))
              - CASE WHEN jsonb_typeof(($3::jsonb[])[width_bucket(id, $1::bigint[])] -> 'checkpoint') = 'null'
                     THEN 'checkpoint' ELSE '' END
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
RETURNING id
