-- The view howdah.job: every job with its state, for queries by hand. The columns have the names of the protocol. The function
-- howdah.job_of(ids) returns the rows of these jobs, and reads only the history partitions that may contain them. New columns
-- come last, because CREATE OR REPLACE VIEW can only append them. The last ones, plain_columns, are the plain options without a
-- column above (server/engine/src/store/option_sql.rs). updated: time of the last known enqueue, start, failure or end.
DO $do$
DECLARE
    jobs text := $jobs$
SELECT j.id, t.name AS task_type, j.state, j.priority, j.attempt, j.max_attempts, j.key,
       j.created, j.run_at, j.leased_at, j.finished, j.deadline, j.headers, j.failures,
       howdah.payload_of(j.id, j.payload, j.options) AS payload, j.result, j.type_id,
       CASE WHEN jsonb_typeof(j.options -> 'parent_id') = 'number'
            THEN least(greatest((j.options -> 'parent_id')::numeric, 0), 9223372036854775807)::bigint END AS parent_id,
       j.options ->> 'limit_key' AS limit_key, j.options ->> 'fair_key' AS fair_key,
       howdah.coordination_of(j.id, j.options) -> 'next_stages' AS next_stages,
       howdah.coordination_of(j.id, j.options) -> 'completed_stages' AS completed_stages,
       b.name AS broker, j.options -> 'tags' AS tags,
       greatest(j.created, j.leased_at, j.finished, (j.failures -> -1 ->> 'failed')::timestamptz) AS updated{{plain_columns}}
FROM (
    SELECT id, type_id, 'ready'::text AS state, priority, attempt, max_attempts,
           key, created, NULL::timestamptz AS run_at, NULL::timestamptz AS leased_at,
           NULL::timestamptz AS finished, NULL::timestamptz AS deadline, headers, failures, payload,
           NULL::bytea AS result, options, NULL::integer AS broker_id
    FROM howdah.ready %1$s
    UNION ALL
    SELECT id, type_id, 'leased', priority, attempt, max_attempts, key, created, NULL, leased_at,
           NULL, deadline, headers, failures, payload, NULL, options, broker_id
    FROM howdah.leased %1$s
    UNION ALL
    SELECT id, type_id, 'scheduled', priority, attempt, max_attempts, key, created, run_at,
           leased_at, NULL, NULL, headers, failures, payload, NULL, options, NULL
    FROM howdah.scheduled %1$s
    UNION ALL
    SELECT id, type_id, 'waiting', priority, attempt, max_attempts, key, created, NULL, NULL,
           NULL, NULL, headers, failures, payload, NULL, options, NULL
    FROM howdah.waiting %1$s
    UNION ALL
    SELECT id, type_id, 'dead', priority, attempt, max_attempts, key, created, NULL, leased_at,
           died, NULL, headers, failures, payload, NULL, options, NULL
    FROM howdah.dead %1$s
    UNION ALL
    SELECT id, type_id,
           outcome::text,
           priority, attempt, max_attempts, key, created, NULL, leased_at, finished, NULL, headers,
           failures, payload, result, options, NULL
    FROM %2$s
) j
JOIN howdah.task_type t ON t.id = j.type_id
LEFT JOIN howdah.broker b ON b.id = j.broker_id
$jobs$;
BEGIN
    EXECUTE 'CREATE OR REPLACE VIEW howdah.job AS ' || format(jobs, '', 'howdah.history');
    EXECUTE format('CREATE OR REPLACE FUNCTION howdah.job_of(ids bigint[]) RETURNS SETOF howdah.job LANGUAGE sql STABLE AS %L',
                   format(jobs, 'WHERE id = ANY (ids)', 'howdah.history_of(ids)'));
END $do$;
