-- Returns which of the given jobs are still in the given state and would be changed by the bulk operation. So a job that
-- already has the new values is neither counted nor changed, and a repeated batch changes no job twice. $1 id[] $2 type $3
-- their state $4 fields to set
SELECT j.id FROM howdah.ready j
WHERE $3::text = 'ready' AND j.id = ANY ($1::bigint[]) AND (j.type_id = $2::integer) IS TRUE
  AND howdah.would_change($4::jsonb, 'ready', ROW(j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL, j.key, j.options))
UNION ALL
SELECT j.id FROM howdah.leased j
WHERE $3 = 'leased' AND j.id = ANY ($1) AND (j.type_id = $2) IS TRUE
  AND howdah.would_change($4, 'leased', ROW(j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL, j.key, j.options))
UNION ALL
SELECT j.id FROM howdah.scheduled j
WHERE $3 = 'scheduled' AND j.id = ANY ($1) AND (j.type_id = $2) IS TRUE
  AND howdah.would_change($4, 'scheduled', ROW(j.id, j.attempt, j.max_attempts, j.timeout_ms, j.run_at, j.key, j.options))
UNION ALL
SELECT j.id FROM howdah.waiting j
WHERE $3 = 'waiting' AND j.id = ANY ($1) AND (j.type_id = $2) IS TRUE
  AND howdah.would_change($4, 'waiting', ROW(j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL, j.key, j.options))
UNION ALL
SELECT j.id FROM howdah.dead j
WHERE $3 = 'dead' AND j.id = ANY ($1) AND (j.type_id = $2) IS TRUE
  AND howdah.would_change($4, 'dead', ROW(j.id, j.attempt, j.max_attempts, j.timeout_ms, NULL, j.key, j.options))
