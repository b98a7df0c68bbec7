-- enqueue.sql for one job or a few, as when producers call with one job each: the same columns, the same ids and ranks. A statement
-- for one job spends most of its time on beginning: each array that is unnested and each table that might be written cost more than
-- the job. So there is one function scan, which counts, and neither request keys nor payloads out of line. For many jobs it would
-- be slower: element i of an array of texts is found by walking there.
-- $1 type_id[] $2 rank_base[] $3 priority[] $4 max_attempts[] $5 timeout_ms[] $6 headers[] $7 options[] $8 payload[] as in enqueue.sql
-- $9 type_id[] $10 jobs[]: how many jobs of each type these are, for statistics.
WITH stored AS (
    INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers,
                              options, payload)
    SELECT nextval('howdah.job_id'), ($2::bigint[])[i] + (SELECT (extract(epoch FROM now()) * 1000000)::bigint), now(),
           ($5::bigint[])[i], ($1::integer[])[i], 0, ($4::smallint[])[i], ($3::smallint[])[i], ($6::jsonb[])[i],
           ($7::jsonb[])[i], ($8::bytea[])[i]
    FROM generate_series(1, cardinality($1::integer[])) AS i
    WHERE CASE WHEN howdah.is_closed() THEN howdah.refuse_closed() ELSE true END
    RETURNING id
),
counted AS (
    INSERT INTO howdah.statistics_change (type_id, enqueued)
    SELECT ($9::integer[])[t], ($10::integer[])[t] FROM generate_series(1, cardinality($9::integer[])) AS t
)
SELECT array_agg(id) AS ids, (extract(epoch FROM now()) * 1000000)::bigint AS now_us FROM stored
