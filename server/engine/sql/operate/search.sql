-- One bounded scan step of a search among jobs of one state. Without an index by type, it also reads jobs of other types. It ends
-- after $4 jobs, or before the compared payloads exceed $5 bytes, but reads at least one job. The last row says how far it came; no
-- row means that nothing is left.
-- $1 type; $2, $3 position to go on from; $4 maximum of jobs read; $5 maximum of payload bytes compared; $6 since; $7 until (null:
-- now); $8 name of a header; $9 value of the header; $10 text in the payload; $11 path in the payload; $12 maximum of jobs found;
-- $13 conditions (null: none)
WITH looked AS MATERIALIZED (
    SELECT id, rank, ordinal,
           CASE WHEN fits THEN howdah.is_found(id, headers, payload, options, $8::text, $9::text, $10::bytea, $11::text::jsonpath) END AS is_found
    FROM (
        SELECT id, rank, headers, payload, options, fits, row_number() OVER in_order AS ordinal,
               sum(CASE WHEN fits AND ($10::bytea IS NOT NULL OR $11::text IS NOT NULL) THEN howdah.payload_size(payload, options) ELSE 0 END) OVER in_order AS bytes
        FROM (
            SELECT id, {rank} AS rank, headers, payload, options,
                   {of_type} AND {since} >= $6::timestamptz AND ($7::timestamptz IS NULL OR {since} < $7)
                       AND howdah.meets($13::jsonb, created, attempt, options) AS fits
            FROM howdah.{table}
            WHERE {after}
            ORDER BY {scan} LIMIT $4::integer
        ) in_reach
        WINDOW in_order AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)
    ) measured
    WHERE bytes <= $5::bigint OR ordinal = 1
)
(SELECT id, rank, ordinal, true AS is_found FROM looked WHERE is_found ORDER BY ordinal LIMIT $12::integer)
UNION ALL
(SELECT id, rank, ordinal, false FROM looked ORDER BY ordinal DESC LIMIT 1)
