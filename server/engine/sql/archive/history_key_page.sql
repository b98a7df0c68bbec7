-- Like history_page.sql, for the jobs of one key, by the index on keys: every row that a page reads is chosen.
-- $1 day $2 after this id $3 limit $4 with payloads and results $5 only late jobs $6 type $7 outcome $8 from this time on
-- $9 before this time $10 key
SELECT h.id, h.type_id, h.created, h.leased_at, h.finished, h.outcome::text AS outcome, h.attempt, h.max_attempts, h.priority,
       h.key, h.options ->> 'limit_key' AS limit_key, h.options ->> 'fair_key' AS fair_key, h.headers::text AS headers,
       h.options::text AS options, h.failures::text AS failures,
       CASE WHEN NOT $4::boolean THEN NULL WHEN h.options -> 'payload_bytes' IS NULL THEN h.payload
            ELSE coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = h.id LIMIT 1), h.payload) END AS payload,
       h.payload_bytes, CASE WHEN $4::boolean THEN h.result END AS result, true AS chosen
FROM (
    SELECT s.*, sum(CASE WHEN $4 THEN s.payload_bytes + coalesce(octet_length(s.result), 0) ELSE 0 END)
                    OVER (ORDER BY s.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT h.*, coalesce(howdah.archived_bytes(h.payload, h.options), 0) AS payload_bytes
        FROM howdah.history h
        WHERE h.finished >= $1::text::date::timestamp AT TIME ZONE 'UTC'
          AND h.finished < ($1::text::date + 1)::timestamp AT TIME ZONE 'UTC'
          AND hashtext(h.key) = hashtext($10::text) AND h.key = $10 AND h.type_id = $6::integer AND h.id > $2::bigint
          AND ($7::text IS NULL OR h.outcome::text = $7)
          AND ($8::timestamptz IS NULL OR h.finished >= $8) AND ($9::timestamptz IS NULL OR h.finished < $9)
          AND (NOT $5::boolean OR h.id IN (SELECT l.id FROM howdah.archive_late l WHERE l.day = $1::text::date))
        ORDER BY h.id LIMIT $3::integer
    ) s
) h
WHERE coalesce(h.before, 0) < 16777216
ORDER BY h.id
