-- Returns which of the given jobs have finished or are dead, as many as fit into an answer. A job that ended, was revived and
-- ended again is returned once for each end. $1 id[] $2 bytes at most (but at least one job)
WITH ended AS (
    SELECT id, died AS finished, options, headers, failures, payload, NULL::bytea AS result FROM howdah.dead WHERE id = ANY ($1::bigint[])
    UNION ALL
    SELECT id, finished, options, headers, failures, payload, result FROM howdah.history_of($1::bigint[])
),
measured AS MATERIALIZED (
    SELECT id, finished, options, count(*) OVER () AS ended, row_number() OVER in_order AS ordinal,
           sum(500 + howdah.payload_size(payload, options) + coalesce(octet_length(result), 0) + coalesce(octet_length(headers::text), 0)
               + coalesce(octet_length(failures::text), 0) + coalesce(octet_length(options::text), 0)) OVER in_order AS bytes
    FROM ended WINDOW in_order AS (ORDER BY id)
)
SELECT j.id, task_type, state, priority, attempt, max_attempts, key, created, run_at, leased_at, j.finished,
       deadline, headers, failures, payload, result, m.options, howdah.coordination_of(j.id, m.options) AS coordination,
       howdah.original_type(m.options) AS original_task_type, m.options -> 'tags' AS tags, m.bytes::bigint, m.ended
FROM howdah.job_of(ARRAY(SELECT id FROM measured WHERE bytes < $2::bigint OR ordinal = 1)) j JOIN measured m ON m.id = j.id AND m.finished = j.finished
WHERE state IN ('dead', 'succeeded', 'cancelled', 'expired', 'discarded')
ORDER BY m.ordinal
