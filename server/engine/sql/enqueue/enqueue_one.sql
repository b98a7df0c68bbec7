-- Stores the same row as enqueue.sql, for a single job, because many producers send one job per call. A statement for one job
-- spends most of its time on starting: each array that is unnested, and each table that may be written, costs as much as
-- storing the job. So this statement takes no arrays and no payload out of line, and calls a function to store a request key.
-- $1 type_id $2 rank_base $3 priority $4 max_attempts $5 timeout_ms $6 headers $7 options $8 payload $9 request key (null:
-- none) $10 body hash
WITH stored AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers,
                              options, payload)
    SELECT nextval('howdah.job_id'), $2::bigint + (extract(epoch FROM now()) * 1000000)::bigint, now(), $5::bigint,
           $1::integer, 0, $4::smallint, $3::smallint, $6::jsonb, $7::jsonb, $8::bytea
    WHERE CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
    RETURNING id
),
counted AS (INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES ($1::integer, 1))
SELECT id, (extract(epoch FROM now()) * 1000000)::bigint AS now_us,
       CASE WHEN $9::text IS NOT NULL THEN howdah.note_request($9::text, $10::bytea, id) END
FROM stored
