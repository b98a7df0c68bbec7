-- Jobs that ask for more than a place in the order: stages, dependencies, limits, keys that are replaced,
-- somebody who waits for them. They have "special": true in options. The hot statements leave them alone
-- where a lease ends, so that other jobs pay nothing; then the functions here do it. A row of `waiting` has
-- every column of a job that has no lease, so an array of them is how jobs are handed on.

-- A key may be held for a time instead of until its job finishes, has a version, and may have a job that
-- is to run after the one that runs now.
ALTER TABLE howdah.job_key
    ADD COLUMN version bigint,
    ADD COLUMN held_until timestamptz,
    ADD COLUMN debounce_until timestamptz,
    ADD COLUMN next_id bigint;
CREATE INDEX job_key_held ON howdah.job_key (held_until) WHERE held_until IS NOT NULL;

-- job_id waits for after_id.
CREATE TABLE howdah.dependency (
    after_id  bigint NOT NULL,
    job_id    bigint NOT NULL,
    PRIMARY KEY (after_id, job_id)
);
CREATE INDEX dependency_by_job ON howdah.dependency (job_id);

-- Jobs that must have begun by a time. The row stays until then, whatever becomes of the job.
CREATE TABLE howdah.expiry (
    expire_at  timestamptz NOT NULL,
    id         bigint NOT NULL,
    PRIMARY KEY (expire_at, id)
);

-- Limits of a type: jobs that run at once and a rate, looked at when they are claimed. Limits of each of its
-- limit keys: jobs at once (in strict order: also while one waits for its next attempt), a pause between
-- starts, a rate; looked at before a job becomes ready.
ALTER TABLE howdah.task_type
    ADD COLUMN max_running integer CHECK (max_running > 0),
    ADD COLUMN rate_per_s double precision CHECK (rate_per_s > 0),
    ADD COLUMN rate_burst integer CHECK (rate_burst > 0),
    ADD COLUMN key_max_running integer CHECK (key_max_running > 0),
    ADD COLUMN key_strict boolean,
    ADD COLUMN key_min_gap_ms bigint CHECK (key_min_gap_ms > 0),
    ADD COLUMN key_rate_per_s double precision CHECK (key_rate_per_s > 0),
    ADD COLUMN key_rate_burst integer CHECK (key_rate_burst > 0);

-- A limit key that jobs wait at, or (with an empty key) a type with limits. Who grants locks the row.
CREATE TABLE howdah.limit_gate (
    type_id       integer NOT NULL,
    limit_key     text NOT NULL,
    check_at      timestamptz,          -- null: nothing to grant before a job ends or comes
    paused_until  timestamptz,
    last_start    timestamptz,
    tokens        double precision,     -- of the rate; null: full
    refilled      timestamptz,
    PRIMARY KEY (type_id, limit_key)
);
CREATE INDEX limit_gate_due ON howdah.limit_gate (check_at) WHERE check_at IS NOT NULL;

-- Slots are not counted but looked up: a job with a limit key holds one while it is ready or leased. So none
-- is ever lost or counted twice, whatever dies.
CREATE INDEX ready_by_limit_key ON howdah.ready (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX leased_by_limit_key ON howdah.leased (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
CREATE INDEX scheduled_by_limit_key ON howdah.scheduled (type_id, (options ->> 'limit_key')) WHERE options -> 'limit_key' IS NOT NULL;
DROP INDEX howdah.waiting_by_limit_key;
CREATE INDEX waiting_by_limit_key ON howdah.waiting (type_id, limit_key, rank, id) WHERE limit_key IS NOT NULL;

-- A lease of a type that had a limit when it was claimed.
ALTER TABLE howdah.leased ADD COLUMN limited boolean;
CREATE INDEX leased_limited ON howdah.leased (type_id) WHERE limited;

-- Whether jobs of a limit key wait for their turn. In strict order a job that is tried again has kept its place.
CREATE FUNCTION howdah.is_limited(type_id integer, limit_key text, is_retry boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.task_type t WHERE t.id = $1 AND NOT (is_retry AND coalesce(t.key_strict, false))
                   AND (t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL))
        OR EXISTS (SELECT FROM howdah.limit_gate g WHERE g.type_id = $1 AND g.limit_key = $2 AND g.paused_until > now())
$$;

-- The rank that each fair key was given last.
CREATE TABLE howdah.fair_share (
    type_id    integer NOT NULL,
    priority   smallint NOT NULL,
    fair_key   text NOT NULL,
    last_rank  bigint NOT NULL,
    given      integer NOT NULL,           -- jobs in the batch that got it
    PRIMARY KEY (type_id, priority, fair_key)
);

-- What became ready (1: type, lowest rank, jobs), is scheduled (2: µs from now in rank), or waits for a
-- limit (3; 4: to be looked at in so many µs, in rank): for the brokers to know.
CREATE TYPE howdah.woken AS (kind smallint, type_id integer, rank bigint, jobs bigint);

-- How much one priority weighs in the ranks of a type.
CREATE FUNCTION howdah.rank_step(type_id integer) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT 35184372088832
$$;

-- Where a job goes now: 1 ready, 3 scheduled, 4 waiting for a job, 5 waiting for a limit.
CREATE FUNCTION howdah.place_of(job howdah.waiting) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN job.options ? 'behind' OR EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = job.id) THEN 4
        WHEN to_timestamp((job.options ->> 'start_us')::bigint / 1000000.0) > now() THEN 3
        WHEN job.options ? 'limit_key'
             AND howdah.is_limited(job.type_id, job.options ->> 'limit_key', job.attempt > 0) THEN 5
        ELSE 1 END::smallint
$$;

-- Jobs with a fair key get ranks in which the keys of a type take turns: start-time fair queueing (Goyal,
-- Vin, Cheng 1996). A key begins at the lowest rank that is ready now, or 1 ms behind its last one.
CREATE FUNCTION howdah.fair_ranks(jobs howdah.waiting[]) RETURNS howdah.waiting[] LANGUAGE plpgsql AS $$
DECLARE
    quantum CONSTANT bigint := 1000;
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    ranked howdah.waiting[];
BEGIN
    WITH job AS MATERIALIZED (
        SELECT j AS job, j.id, j.type_id, j.priority, j.options ->> 'fair_key' AS fair_key,
               row_number() OVER (PARTITION BY j.type_id, j.priority, j.options ->> 'fair_key' ORDER BY j.rank, j.id) AS n
        FROM unnest(jobs) j
        WHERE j.options ? 'fair_key' AND j.attempt = 0 AND howdah.place_of(j) IN (1, 5)
    ),
    -- As of now, for a priority: its ranks lie half a step around this.
    base AS MATERIALIZED (
        SELECT b.type_id, b.priority, coalesce((
            SELECT r.rank FROM howdah.ready r
            WHERE r.type_id = b.type_id AND r.rank >= b.rank - 2592000000000 AND r.rank < b.rank + b.step / 2
            ORDER BY r.type_id, r.rank, r.id LIMIT 1), b.rank) AS rank
        FROM (SELECT DISTINCT type_id, priority, howdah.rank_step(type_id) AS step,
                     priority * howdah.rank_step(type_id) + now_us AS rank FROM job) b
    ),
    given AS (
        INSERT INTO howdah.fair_share AS f (type_id, priority, fair_key, last_rank, given)
        SELECT k.type_id, k.priority, k.fair_key, b.rank + (k.given - 1) * quantum, k.given
        FROM (SELECT type_id, priority, fair_key, max(n) AS given FROM job GROUP BY 1, 2, 3) k
        JOIN base b USING (type_id, priority)
        ORDER BY 1, 2, 3
        ON CONFLICT (type_id, priority, fair_key) DO UPDATE SET given = excluded.given,
            last_rank = greatest(excluded.last_rank, f.last_rank + excluded.given * quantum)
        RETURNING type_id, priority, fair_key, last_rank - (given - 1) * quantum AS first_rank
    )
    SELECT array_agg(ROW(j.id, coalesce(g.first_rank + (f.n - 1) * quantum, j.rank), j.created, j.timeout_ms,
                         j.last_token, j.type_id, j.attempt, j.max_attempts, j.priority, j.key, j.limit_key, j.headers,
                         j.options, j.failures, j.payload)::howdah.waiting)
    INTO ranked
    FROM unnest(jobs) j LEFT JOIN job f USING (id)
    LEFT JOIN given g ON g.type_id = f.type_id AND g.priority = f.priority AND g.fair_key = f.fair_key;
    RETURN ranked;
END $$;

-- Puts jobs where they belong now. They are in no table when it is called.
CREATE FUNCTION howdah.route(jobs howdah.waiting[]) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(jobs), 0) = 0 THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM unnest(jobs) j WHERE j.options ? 'fair_key') THEN
        jobs := howdah.fair_ranks(jobs);
    END IF;
    RETURN QUERY
    WITH placed AS MATERIALIZED (
        SELECT j.*, howdah.place_of(j) AS place, to_timestamp((j.options ->> 'start_us')::bigint / 1000000.0) AS run_at
        FROM unnest(jobs) j
    ),
    to_ready AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                  key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, headers,
               options, failures, payload
        FROM placed WHERE place = 1
        RETURNING type_id, rank
    ),
    to_scheduled AS (
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, last_token, run_at, type_id, attempt, max_attempts,
                                      priority, key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, p.run_at, type_id, attempt, max_attempts, priority, key,
               headers, options, failures, payload
        FROM placed p WHERE place = 3
    ),
    to_waiting AS (
        INSERT INTO howdah.waiting (id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority,
                                    key, limit_key, headers, options, failures, payload)
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key,
               CASE place WHEN 5 THEN options ->> 'limit_key' END, headers, options, failures, payload
        FROM placed WHERE place IN (4, 5)
    ),
    at_gates AS (
        INSERT INTO howdah.limit_gate (type_id, limit_key, check_at)
        SELECT DISTINCT p.type_id, options ->> 'limit_key', now() FROM placed p WHERE place = 5 ORDER BY 1, 2
        ON CONFLICT ON CONSTRAINT limit_gate_pkey DO UPDATE SET check_at = now()
        RETURNING 1
    )
    SELECT 1::smallint, r.type_id, min(r.rank), count(*) FROM to_ready r GROUP BY r.type_id
    UNION ALL
    SELECT 2::smallint, NULL, (extract(epoch FROM min(p.run_at) - now()) * 1000000)::bigint, count(*)
    FROM placed p WHERE place = 3 HAVING count(*) > 0
    UNION ALL
    SELECT 3::smallint, NULL, 0, count(*) FROM at_gates HAVING count(*) > 0;
END $$;

-- Jobs that may no longer have to wait: looked at again, in the order of their ids.
CREATE FUNCTION howdah.release_waiting(ids bigint[]) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    -- Two parents may end at once: who comes second waits here, and then sees that the other has ended.
    PERFORM FROM howdah.waiting WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    WITH gone AS (
        DELETE FROM howdah.waiting w WHERE id = ANY (ids)
          AND NOT EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = w.id)
        RETURNING w.*
    )
    SELECT array_agg(gone::howdah.waiting) INTO jobs FROM gone;
    RETURN QUERY SELECT * FROM howdah.route(jobs);
END $$;

-- Promotes scheduled jobs that are special: they may have to wait for a limit now.
CREATE FUNCTION howdah.promote_special(at_most integer) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    WITH due AS (
        SELECT ctid FROM howdah.scheduled
        WHERE run_at <= now() AND options -> 'special' IS NOT NULL
        ORDER BY run_at, id LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM howdah.scheduled WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING *)
    SELECT array_agg(ROW(id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL,
                         headers, options, failures, payload)::howdah.waiting)
    INTO jobs FROM gone;
    RETURN QUERY SELECT * FROM howdah.route(jobs);
END $$;
CREATE INDEX scheduled_special ON howdah.scheduled (run_at, id) WHERE options -> 'special' IS NOT NULL;

-- Ends jobs that have not begun by their time. $1 at most
CREATE FUNCTION howdah.expire_jobs(at_most integer) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    WITH due AS (
        SELECT ctid FROM howdah.expiry WHERE expire_at <= now() ORDER BY expire_at LIMIT at_most FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM howdah.expiry WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING id)
    SELECT array_agg(id) INTO ids FROM gone;
    IF ids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM howdah.end_unbegun(ids, 8::smallint);
    END IF;
END $$;

-- Whether a job had to begin by a time that is over. Its row in expiry may be of before it was replaced.
CREATE FUNCTION howdah.is_late(options jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'expire_us') = 'number'
                THEN (options -> 'expire_us')::numeric <= extract(epoch FROM now()) * 1000000 ELSE false END
$$;

-- Ends those of these jobs that wait for their first attempt and are late, with this outcome.
CREATE FUNCTION howdah.end_unbegun(ids bigint[], state smallint) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    jobs howdah.waiting[];
BEGIN
    WITH from_ready AS (DELETE FROM howdah.ready WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    from_scheduled AS (DELETE FROM howdah.scheduled WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    from_waiting AS (DELETE FROM howdah.waiting WHERE id = ANY (ids) AND attempt = 0 AND howdah.is_late(options) RETURNING *),
    gone AS (
        SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL AS limit_key,
               headers, options, failures, payload FROM from_ready
        UNION ALL SELECT id, rank, created, timeout_ms, last_token, type_id, attempt, max_attempts, priority, key, NULL,
               headers, options, failures, payload FROM from_scheduled
        UNION ALL SELECT * FROM from_waiting
    )
    SELECT array_agg(ROW(gone.*)::howdah.waiting) INTO jobs FROM gone;
    RETURN QUERY SELECT * FROM howdah.bury(jobs, state);
END $$;

-- Writes jobs that are in no table to history, and does what follows from their end.
CREATE FUNCTION howdah.bury(jobs howdah.waiting[], state smallint) RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(jobs), 0) = 0 THEN
        RETURN;
    END IF;
    DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(jobs) WHERE options ? 'on_failure'));
    INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                options, failures, payload)
    SELECT id, created, now(), type_id, state, attempt, max_attempts, priority, key, headers, options, failures, payload
    FROM unnest(jobs);
    RETURN QUERY SELECT w.* FROM (
        SELECT array_agg(id) AS ids, array_agg(type_id) AS type_ids, array_agg(key) AS keys, array_agg(options) AS options,
               array_agg(state) AS states
        FROM unnest(jobs)) j,
        LATERAL howdah.after_end(j.ids, j.type_ids, j.keys, j.options, j.states) w;
END $$;

-- What follows when jobs have ended, by the number of their state: 5 dead, 6 succeeded, 7 cancelled, 8
-- expired, 9 discarded; or 3: they have only left the place that a limit counts, or 4: and their keys. Keys are freed or go to
-- the next job, limits are looked at again, dependents run or are cancelled, who waits is told. Jobs that are
-- cancelled on the way are ended in the next round; a chain of them is found in one statement.
CREATE FUNCTION howdah.after_end(ids bigint[], type_ids integer[], keys text[], options jsonb[], states smallint[])
RETURNS SETOF howdah.woken LANGUAGE plpgsql AS $$
DECLARE
    loose bigint[];
    doomed howdah.waiting[];
    told text;
BEGIN
    LOOP
        PERFORM FROM howdah.limit_gate g
        JOIN (SELECT DISTINCT e.type_id, e.options ->> 'limit_key' AS limit_key
              FROM unnest(type_ids, options) AS e(type_id, options) WHERE e.options ? 'limit_key') e
          ON g.type_id = e.type_id AND g.limit_key = e.limit_key
        ORDER BY g.type_id, g.limit_key FOR UPDATE OF g;
        UPDATE howdah.limit_gate g SET check_at = now()
        FROM unnest(type_ids, options) AS e(type_id, options)
        WHERE g.type_id = e.type_id AND g.limit_key = e.options ->> 'limit_key';
        IF FOUND THEN
            RETURN NEXT ROW(3::smallint, NULL, 0, 1)::howdah.woken;
        END IF;

        loose := howdah.free_keys(ids, type_ids, keys, options, states);

        -- Children of those which ended badly, and theirs.
        WITH RECURSIVE bad AS (
            SELECT e.id, e.state FROM unnest(ids, states) AS e(id, state) WHERE e.state IN (5, 7, 8, 9)
            UNION
            SELECT w.id, 7::smallint
            FROM bad
            -- Look-ups, however many there are: a join would read all of both tables for each link of a chain.
            CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = bad.id OFFSET 0) d
            CROSS JOIN LATERAL (SELECT w.id, w.options FROM howdah.waiting w WHERE w.id = d.job_id OFFSET 0) w
            WHERE coalesce(w.options ->> 'on_failure', 'cancel') = 'cancel'
               OR w.options ->> 'on_failure' = 'wait' AND bad.state <> 5
        ),
        gone AS (
            DELETE FROM howdah.waiting WHERE id = ANY (ARRAY(SELECT id FROM bad)) RETURNING *
        )
        SELECT array_agg(gone::howdah.waiting) INTO doomed FROM gone;

        -- The others no longer wait for these; but for a dead job they may want to.
        WITH ended AS (
            SELECT e.id, e.state FROM unnest(ids, states) AS e(id, state) WHERE e.state > 4
        ),
        gone AS (
            DELETE FROM howdah.dependency d USING ended e
            WHERE d.after_id = e.id
              AND (e.state <> 5 OR EXISTS (SELECT FROM howdah.waiting w WHERE w.id = d.job_id
                                           AND w.options ->> 'on_failure' = 'run'))
            RETURNING d.job_id
        )
        SELECT loose || array_agg(DISTINCT job_id) INTO loose FROM gone;
        IF loose IS NOT NULL THEN
            RETURN QUERY SELECT * FROM howdah.release_waiting(loose);
        END IF;

        FOR told IN
            SELECT string_agg(e.id::text, ',') FROM (
                SELECT w.id, row_number() OVER () AS n FROM unnest(ids, options, states) AS w(id, options, state)
                WHERE w.options ? 'waited' AND w.state > 4) e
            GROUP BY e.n / 300
        LOOP
            PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'd ' || told);
        END LOOP;

        EXIT WHEN doomed IS NULL;
        DELETE FROM howdah.dependency WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(doomed)));
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, headers,
                                    options, failures, payload)
        SELECT id, created, now(), type_id, 7, attempt, max_attempts, priority, key, headers, j.options,
               howdah.add_failure(failures, attempt, 'a job that it was to run after did not succeed', NULL), payload
        FROM unnest(doomed) j;
        SELECT array_agg(j.id), array_agg(j.type_id), array_agg(j.key), array_agg(j.options), array_agg(7::smallint)
        INTO ids, type_ids, keys, options, states
        FROM unnest(doomed) j;
    END LOOP;
END $$;

-- Frees the keys of jobs that have ended, but for those that are held for a time. Returns the jobs that
-- were to run next with their keys.
CREATE FUNCTION howdah.free_keys(ids bigint[], type_ids integer[], keys text[], options jsonb[], states smallint[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    next_ids bigint[];
BEGIN
    IF array_length(array_remove(keys, NULL), 1) IS NULL THEN
        RETURN NULL;
    END IF;
    -- One that was to run next with the key, and never will.
    UPDATE howdah.job_key k SET next_id = NULL
    FROM unnest(ids, type_ids, keys, options, states) AS e(id, type_id, key, options, state)
    WHERE k.type_id = coalesce((e.options ->> 'key_type')::integer, e.type_id) AND k.key = e.key AND k.next_id = e.id
      AND e.state <> 3;
    WITH ended AS (
        SELECT e.id, coalesce((e.options ->> 'key_type')::integer, e.type_id) AS type_id, e.key
        FROM unnest(ids, type_ids, keys, options, states) AS e(id, type_id, key, options, state)
        WHERE e.key IS NOT NULL AND e.state <> 3
    ),
    next AS (
        UPDATE howdah.job_key k SET job_id = k.next_id, next_id = NULL FROM ended e
        WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id AND k.next_id IS NOT NULL
        RETURNING k.job_id
    ),
    freed AS (
        DELETE FROM howdah.job_key k USING ended e
        WHERE k.type_id = e.type_id AND k.key = e.key AND k.job_id = e.id AND k.next_id IS NULL
          AND (k.held_until IS NULL OR k.held_until <= now())
    ),
    loose AS (
        UPDATE howdah.waiting w SET options = w.options - 'behind' FROM next n WHERE w.id = n.job_id RETURNING w.id
    )
    SELECT array_agg(id) INTO next_ids FROM loose;
    RETURN next_ids;
END $$;
