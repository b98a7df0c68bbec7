-- A query in a function of LANGUAGE sql that is not inlined is planned in each call; plpgsql plans it once a connection.
-- These are called for single jobs, by SQL above all. They do what they did.

-- Where a job goes now: 1 ready, 3 scheduled, 4 waiting for a job, 5 waiting for a limit.
CREATE OR REPLACE FUNCTION howdah.place_of(job howdah.waiting) RETURNS smallint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
        WHEN job.options ? 'behind' OR EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = job.id) THEN 4
        WHEN to_timestamp((job.options ->> 'start_us')::bigint / 1000000.0) > now() THEN 3
        WHEN job.options ? 'limit_key'
             AND howdah.is_limited(job.type_id, job.options ->> 'limit_key', job.attempt > 0) THEN 5
        ELSE 1 END;
END $$;

-- Whether jobs of a limit key wait for their turn (V15__limits_hold.sql).
CREATE OR REPLACE FUNCTION howdah.is_limited(type_id integer, limit_key text, is_retry boolean)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM howdah.task_type t WHERE t.id = $1
                   AND (t.key_max_running IS NOT NULL OR t.key_min_gap_ms IS NOT NULL OR t.key_rate_per_s IS NOT NULL))
        OR EXISTS (SELECT FROM howdah.limit_gate g WHERE g.type_id = $1 AND g.limit_key = $2 AND g.paused_until > now());
END $$;

-- A type's step. Statements that run often look it up themselves: this is called for each row.
CREATE OR REPLACE FUNCTION howdah.rank_step(type_id integer) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1), 35184372088832);
END $$;
