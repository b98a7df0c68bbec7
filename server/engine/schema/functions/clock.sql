-- Corrects stored times after the database's clock has gone back: a replica with another clock was promoted, or a wrong clock
-- was set right. Rows that were written while the clock was ahead contain times that are too late. If a row stores when it was
-- written, that time becomes now, and its other times move back as far, so the remaining wait stays the same. In other rows,
-- times are set to now. Locked rows are skipped. Rows of brokers are corrected by their renewals (renew_broker.sql).

-- Returns whether the clock has gone back: the stored time of the last howdah.sum_statistics is in the future. That function
-- runs every few seconds while jobs are processed. After the clock has gone back, it runs only after howdah.correct_times.
CREATE OR REPLACE FUNCTION howdah.clock_went_back() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM howdah.statistics_sum WHERE summed > now() + interval '2 seconds' AND isfinite(summed))
$$;

-- Returns the earlier of two times; null if the first one is null (least() would return the other one).
CREATE OR REPLACE FUNCTION howdah.not_after(stored timestamptz, latest timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN stored > latest THEN latest ELSE stored END;

CREATE OR REPLACE FUNCTION howdah.correct_times() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- Transactions that began later have written correct times some milliseconds ahead of now().
    soon CONSTANT timestamptz := now() + interval '1 second';
BEGIN
    PERFORM howdah.correct_limit_times(soon);
    PERFORM howdah.correct_key_times(soon);
    UPDATE howdah.leased SET deadline = deadline - (leased_at - now()), leased_at = now() WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM howdah.leased l WHERE l.leased_at > soon FOR UPDATE SKIP LOCKED));
    -- A schedule whose firing failed is tried again within a minute.
    UPDATE howdah.schedule SET next_at = greatest(next_planned + jitter_ms * interval '1 millisecond', now() + interval '1 minute')
    WHERE ctid = ANY (ARRAY(SELECT s.ctid FROM howdah.schedule s
        WHERE s.next_at > greatest(s.next_planned + s.jitter_ms * interval '1 millisecond', soon + interval '1 minute')
        FOR UPDATE SKIP LOCKED));
    UPDATE howdah.bulk SET next_at = now() WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM howdah.bulk b WHERE b.state = 'running' AND b.next_at > soon FOR UPDATE SKIP LOCKED));
    -- A running archive run renews held_until, so a shorter held_until does not end the run.
    UPDATE howdah.archive SET held_until = now() + interval '2 minutes' WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM howdah.archive a WHERE a.held_until > soon + interval '2 minutes' FOR UPDATE SKIP LOCKED));
    UPDATE howdah.task_type SET step_changed = howdah.not_after(step_changed, now()), unused_since = howdah.not_after(unused_since, now())
    WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM howdah.task_type t
        WHERE t.step_changed > soon OR t.unused_since > soon FOR NO KEY UPDATE SKIP LOCKED));
    UPDATE howdah.pull SET last = now() WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM howdah.pull p WHERE p.last > soon FOR UPDATE SKIP LOCKED));
    UPDATE howdah.token SET expires = expires - (created - now()), created = now() WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM howdah.token t WHERE t.created > soon FOR UPDATE SKIP LOCKED));
    UPDATE howdah.revoked_jwt SET until = until - (revoked - now()), revoked = now() WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM howdah.revoked_jwt r WHERE r.revoked > soon FOR UPDATE SKIP LOCKED));
    UPDATE howdah.settings SET version = version + 1;
    UPDATE howdah.backlog_sample SET sampled = least(sampled, date_trunc('minute', now()));
    -- This statement must be the last one: after it, howdah.clock_went_back returns false.
    UPDATE howdah.statistics_sum SET summed = least(summed, now()), scanned = least(scanned, now());
END $$;

-- Corrects the times of brakes and limit keys, and makes these keys due for a check, which computes the time of the next check.
CREATE OR REPLACE FUNCTION howdah.correct_limit_times(soon timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE howdah.limit_state SET check_at = howdah.not_after(check_at, now()), refilled = howdah.not_after(refilled, now()),
        gap_from = howdah.not_after(gap_from, now()), paused_at = howdah.not_after(paused_at, now()),
        paused_until = CASE WHEN paused_at > soon THEN paused_until - (paused_at - now()) ELSE paused_until END
    WHERE ctid = ANY (ARRAY(SELECT l.ctid FROM howdah.limit_state l
        WHERE greatest(l.check_at, l.refilled, l.gap_from, l.paused_at) > soon FOR UPDATE SKIP LOCKED));
    UPDATE howdah.brake SET since = howdah.not_after(since, now()), tried = NULL, next_at = now()
    WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM howdah.brake b JOIN howdah.task_type t ON t.id = b.type_id
        WHERE greatest(b.since, b.tried, b.next_at - t.brake_max_ms * interval '1 millisecond') > soon FOR UPDATE OF b SKIP LOCKED));
    UPDATE howdah.limit_change SET changed = least(changed, now()), due_at = least(due_at, now())
    WHERE ctid = ANY (ARRAY(SELECT l.ctid FROM howdah.limit_change l WHERE l.changed > soon FOR UPDATE SKIP LOCKED));
END $$;

-- Corrects the times of keys and request keys. The time for which a key is held counts from the enqueue of its job.
CREATE OR REPLACE FUNCTION howdah.correct_key_times(soon timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT k.ctid, k.job_id FROM howdah.job_key k WHERE k.held_until > soon FOR UPDATE SKIP LOCKED
    )
    UPDATE howdah.job_key k SET held_until = k.held_until - (j.created - now()), debounce_until = k.debounce_until - (j.created - now())
    FROM ahead a CROSS JOIN LATERAL (
        SELECT r.created FROM howdah.ready r WHERE r.id = a.job_id
        UNION ALL SELECT l.created FROM howdah.leased l WHERE l.id = a.job_id
        UNION ALL SELECT s.created FROM howdah.scheduled s WHERE s.id = a.job_id
        UNION ALL SELECT w.created FROM howdah.waiting w WHERE w.id = a.job_id
        UNION ALL SELECT d.created FROM howdah.dead d WHERE d.id = a.job_id
        UNION ALL SELECT h.created FROM howdah.history h WHERE h.id = a.job_id
        LIMIT 1) j
    WHERE k.ctid = a.ctid AND j.created > soon;
    UPDATE howdah.request SET created = now() WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM howdah.request r WHERE r.created > soon + interval '1 hour' FOR UPDATE SKIP LOCKED));
END $$;

-- Corrects the start times of scheduled jobs that wait for another attempt, in one bounded step. Their delay counts from the
-- failure, or at the earliest from the start of the attempt. Jobs that have not run keep their start time, which the client may
-- have given.
CREATE OR REPLACE FUNCTION howdah.correct_scheduled_times(after_time timestamptz, after_id bigint, at_most integer,
                                                      OUT last_time timestamptz, OUT last_id bigint, OUT moved bigint) LANGUAGE sql AS $$
    WITH seen AS MATERIALIZED (
        SELECT s.ctid, s.run_at, s.id, s.leased_at FROM howdah.scheduled s
        WHERE (s.run_at, s.id) > (coalesce(after_time, now()), coalesce(after_id, 0)) ORDER BY s.run_at, s.id LIMIT at_most
    ),
    changed AS (
        UPDATE howdah.scheduled SET run_at = run_at - (leased_at - now()), leased_at = now(),
               rank = rank - (extract(epoch FROM leased_at - now()) * 1000000)::bigint
        WHERE ctid = ANY (ARRAY(SELECT s.ctid FROM howdah.scheduled s
            WHERE s.ctid = ANY (ARRAY(SELECT n.ctid FROM seen n WHERE n.leased_at > now() + interval '1 second'))
            FOR UPDATE SKIP LOCKED))
        RETURNING 1
    )
    SELECT l.run_at, l.id, (SELECT count(*) FROM changed)
    FROM (SELECT max(n.run_at) AS run_at FROM seen n) m
    LEFT JOIN LATERAL (SELECT n.run_at, n.id FROM seen n WHERE n.run_at = m.run_at ORDER BY n.id DESC LIMIT 1) l ON true
$$;
