-- Claims jobs of all types for which workers of a broker have capacity, in one statement.
-- * ctid = ANY (ARRAY (...)) is a TID scan of the rows that were just locked. With a join by key, the planner may choose a
--   sequential scan, because the statistics of a table that changes this fast are always wrong.
-- * rank >= floor: dead rows of jobs that were claimed before stay in the index until VACUUM removes them, which it cannot
--   do while a transaction holds an old snapshot. The scan starts at the floor, behind these dead rows.
-- * The byte limit compares the bytes before a row, so that the first row is always claimed. Rows locked past the limit are not
--   touched, and their locks end with this statement.
-- * The weight of a job is its payload plus its headers (as text). Another 512 bytes stand for its numbers and names.
-- * A broker whose row has expired claims nothing, because other brokers may already release its leases.
-- * Each lease takes the next of the random tokens that the broker has drawn. Tokens computed here would have to come from a
--   seed, which a worker could find from the tokens of its leases.
-- $1 type_id[] $2 wanted[] $3 floor[] $4 largest weight[] $5 broker (null: pulled) $6 bytes $7 token[] (one for each job that
-- may be claimed) $8 lease_ms (null: while the broker lives) $9 jobs in all $10 true: of types with a limit
WITH want AS (
    SELECT * FROM unnest($1::integer[], $2::integer[], $3::bigint[], $4::bigint[])
        AS w(type_id, wanted, floor_rank, largest)
),
picked AS (
    SELECT ctid, weight, sum(weight + 512) OVER (ROWS UNBOUNDED PRECEDING) AS bytes_through
    FROM (
        SELECT r.ctid, r.weight
        FROM want CROSS JOIN LATERAL (
            SELECT ready.ctid, howdah.payload_size(ready.payload, ready.options)
                       + coalesce(octet_length(ready.headers::text), 0) AS weight
            FROM howdah.ready
            WHERE ready.type_id = want.type_id AND ready.rank >= want.floor_rank
              AND howdah.payload_size(ready.payload, ready.options)
                  + coalesce(octet_length(ready.headers::text), 0) <= want.largest
            ORDER BY ready.rank, ready.id
            LIMIT want.wanted
            FOR UPDATE SKIP LOCKED
        ) r
        WHERE $5::integer IS NULL
           OR EXISTS (SELECT FROM howdah.broker WHERE broker.id = $5 AND broker.expires > now())
        LIMIT $9::integer
    ) l
),
deleted AS (
    DELETE FROM howdah.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM picked WHERE bytes_through - weight - 512 < $6::bigint))
    RETURNING *
)
INSERT INTO howdah.leased (id, rank, created, timeout_ms, last_token, token, leased_at, deadline, broker_id,
                           type_id, attempt, max_attempts, priority, key, headers, options, failures, payload, limited)
SELECT id, rank, created, timeout_ms, last_token, ($7::bigint[])[row_number() OVER ()], now(),
       least(now() + $8::bigint * interval '1 millisecond', now() + timeout_ms * interval '1 millisecond'),
       $5, type_id, attempt + 1, max_attempts, priority, key, headers, options, failures, payload, $10::boolean
FROM deleted
RETURNING id, token, type_id, rank, attempt, max_attempts, created, deadline, headers, options,
          -- Same as howdah.payload_of, but inline, because Postgres would call that function for each row.
          CASE WHEN options -> 'payload_bytes' IS NULL THEN payload
               ELSE coalesce((SELECT p.data FROM howdah.payload p WHERE p.id = leased.id LIMIT 1), payload) END,
          (extract(epoch FROM deadline - now()) * 1000)::bigint AS deadline_in_ms,
          -- The broker computes the wait time from now_us and the rank: the rank without its priority part is the time at which
          -- the job became ready.
          (SELECT (extract(epoch FROM now()) * 1000000)::bigint) AS now_us,
          howdah.payload_size(payload, options) + coalesce(octet_length(headers::text), 0) AS weight,
          priority,
          CASE WHEN jsonb_typeof(options -> 'expire_at_us') = 'number' AND attempt = 1
               THEN (options -> 'expire_at_us')::numeric <= extract(epoch FROM now()) * 1000000 END AS expired
