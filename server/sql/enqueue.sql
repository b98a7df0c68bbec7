-- Jobs that may run at once and carry no key: the hot path of intake, one statement for everything
-- that gathered. Ids come from nextval in the order of the arrays, so the i-th smallest id returned
-- is the i-th job. rank_base is priority * 2^45; the time is read once, not once a row.
-- $1 type_id[] $2 rank_base[] $3 priority[] $4 max_attempts[] $5 timeout_ms[] $6 headers[] $7 options[]
-- $8 payload[]; an array in which all are null may be null itself.
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now_us),
stored AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority,
                              headers, options, payload)
    SELECT nextval('howdah.job_id'), j.rank_base + (SELECT now_us FROM clock), now(), j.timeout_ms,
           j.type_id, 0, j.max_attempts, j.priority, j.headers, j.options, j.payload
    FROM unnest($1::integer[], $2::bigint[], $3::smallint[], $4::smallint[], $5::bigint[], $6::jsonb[],
                $7::jsonb[], $8::bytea[])
        AS j(type_id, rank_base, priority, max_attempts, timeout_ms, headers, options, payload)
    RETURNING id
)
SELECT array_agg(id) AS ids, (SELECT now_us FROM clock) AS now_us FROM stored
