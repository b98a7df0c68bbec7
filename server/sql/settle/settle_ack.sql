-- Acks. ids ($1) are sorted and unique: width_bucket finds a row's ordinal in them by binary search, so
-- each row is compared with its own token and no other. (token = ANY ($2) accepts any token of the
-- batch and searches it from the front: 8 to 18 % slower with 500 a batch. A join with unnest lets the
-- planner choose a scan: 6 times slower.)
-- Coordinated jobs are left for ack_coordinated: the caller passes it what is not found here.
-- $1 id[] $2 token[] $3 result[] (null: none) $4 types that keep no succeeded jobs $5 types that keep
-- those which failed before $6 of $5, types that keep those with a result as well; all mostly empty
WITH deleted AS (
    DELETE FROM howdah.leased
    WHERE id = ANY ($1::bigint[])
      AND token = ($2::bigint[])[width_bucket(id, $1::bigint[])]
      AND options -> 'coordinated' IS NULL
    RETURNING *
),
-- LATERAL … OFFSET 0 keeps it an index look-up for each keyed row; without keyed rows it does nothing.
unkeyed AS (
    DELETE FROM howdah.job_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM deleted g CROSS JOIN LATERAL (
            SELECT j.ctid FROM howdah.job_key j
            WHERE j.type_id = g.type_id AND j.key = g.key AND j.job_id = g.id AND j.held_until IS NULL
            OFFSET 0) k
        WHERE g.key IS NOT NULL))
),
kept AS (
    INSERT INTO howdah.history (id, created, leased_at, finished, token, type_id, outcome, attempt, max_attempts,
                                priority, key, headers, options, failures, payload, result)
    SELECT id, created, leased_at, now(), token, type_id, 'succeeded', attempt, max_attempts, priority, key, headers,
           options, failures, payload, ($3::bytea[])[width_bucket(id, $1::bigint[])]
    FROM deleted
    WHERE NOT (type_id = ANY ($4::integer[]) OR (type_id = ANY ($5::integer[]) AND failures IS NULL
        AND NOT (type_id = ANY ($6::integer[]) AND ($3::bytea[])[width_bucket(id, $1::bigint[])] IS NOT NULL)))
)
SELECT array_agg(id) AS ids, array_agg(type_id) FILTER (WHERE limited) AS limited_types FROM deleted
