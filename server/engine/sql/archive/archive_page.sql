-- Returns jobs of one day for the archive, in the order of their ids. It reads one page, because a cursor over the day would
-- hold a snapshot for minutes, and so hold back VACUUM. The day's partition is sealed: jobs that arrived later are recorded in
-- archive_late, and excluded here, so that all pages together are one state of the partition. Store::archive_page disables
-- sorts and sequential scans, so Postgres scans an index on ids. A page ends with the job that brings its payloads and results
-- to 16 MiB. Large values of rows after the end are not fetched. Payloads outside the row come from howdah.payload.
-- $1 day $2 after this id $3 limit $4 with payloads
SELECT h.id, h.type_id, h.created, h.leased_at, h.finished, h.outcome::text AS outcome, h.attempt, h.max_attempts, h.priority,
       h.key, h.options ->> 'limit_key' AS limit_key, h.options ->> 'fair_key' AS fair_key, h.headers::text AS headers,
       h.options::text AS options, h.failures::text AS failures,
       CASE WHEN NOT $4::boolean THEN NULL WHEN h.options -> 'payload_bytes' IS NULL THEN h.payload
            ELSE coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = h.id LIMIT 1), h.payload) END AS payload,
       h.payload_bytes, h.result
FROM (
    SELECT s.*, sum(s.payload_bytes + coalesce(octet_length(s.result), 0)) OVER (ORDER BY s.id) - s.payload_bytes AS before
    FROM (
        SELECT h.*, coalesce(howdah.archived_bytes(h.payload, h.options), 0) AS payload_bytes
        FROM howdah.history h
        WHERE h.finished >= $1::text::date::timestamp AT TIME ZONE 'UTC'
          AND h.finished < ($1::text::date + 1)::timestamp AT TIME ZONE 'UTC'
          AND h.id > $2::bigint
          AND NOT EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = $1::text::date AND l.id = h.id)
        ORDER BY h.id LIMIT $3::integer
    ) s
) h
WHERE h.before < 16777216
ORDER BY h.id
