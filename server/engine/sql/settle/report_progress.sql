-- Stores progress reports of jobs in their options, so that a report moves with its job. Fields that a report does not set stay
-- unchanged; a null checkpoint removes the checkpoint. A stale token changes nothing.
-- $1 id[] (sorted, unique) $2 token[] $3 fields to set in options (jsonb[])
UPDATE howdah.leased
SET options = (coalesce(options, '{}')
               || ($3::jsonb[])[width_bucket(id, $1::bigint[])]
               || jsonb_build_object('progress_us', (extract(epoch FROM now()) * 1000000)::bigint))
              - CASE WHEN jsonb_typeof(($3::jsonb[])[width_bucket(id, $1::bigint[])] -> 'checkpoint') = 'null'
                     THEN 'checkpoint' ELSE '' END
WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
RETURNING id
