-- Stores a bulk operation, unless too many have not ended: $14 in all, a quarter of these per principal. A repeated request
-- of the same caller returns the operation of the first request. A delay counts from now, so all jobs get the same start
-- time.
-- $1 operation $2 type $3 its name $4 state (null: any) $5 error group (null: any) $6 priority $7 jobs per second (null: any)
-- $8 selected $9 more $10 principal $11 peer $12 reason $13 request key (null: none) $14 open ones at most $15 the bulk
-- operation to undo (null: none) $16 the name of the target type (null: unchanged) $17 fields to set (null: none) $18 conditions (null: none)
WITH stored AS (
    INSERT INTO howdah.bulk (operation, type_id, task_type, job_state, error_group, priority, jobs_per_s, last_job_id, selected,
                             has_more, principal, peer, reason, request_key, undo_bulk_id, to_type, fields, conditions)
    SELECT $1::text, $2::integer, $3::text, $4::text, $5::text, $6::smallint, $7::integer, (SELECT last_value FROM howdah.job_id),
           $8::bigint, $9::boolean, $10::text, $11::text, $12::text, $13::text, $15::bigint, $16::text,
           CASE WHEN $17::jsonb ? 'delay_ms' THEN $17 - 'delay_ms' || jsonb_build_object('start_us', howdah.start_to_set($17)) ELSE $17 END, $18::jsonb
    WHERE (SELECT count(*) FROM howdah.bulk WHERE ended IS NULL) < $14::bigint
      AND ($10 = '' OR (SELECT count(*) FROM howdah.bulk WHERE ended IS NULL AND principal = $10) < $14 / 4)
    ON CONFLICT (principal, request_key) WHERE request_key IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT id, true AS is_new FROM stored
UNION ALL
SELECT id, false FROM howdah.bulk WHERE principal = $10 AND request_key = $13
