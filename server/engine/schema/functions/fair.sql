-- Fair keys: the jobs of a type alternate between its fair keys, by their ranks. Start-time fair queueing (Goyal, Vin, Cheng
-- 1996): a new job of a key gets the lowest rank that is ready now, or a fixed distance after the last rank of the key,
-- whichever is higher.

-- Returns the distance between the ranks of two consecutive jobs with the same fair key, in µs.
CREATE OR REPLACE FUNCTION howdah.fair_rank_distance() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 1000::bigint;

-- Returns the rank of the first job of a fair key without recent jobs: the lowest rank of the ready jobs of this priority, or
-- the rank of the current time if no job is ready. Only ranks from 30 days before the rank of the current time to half a
-- priority step after it are considered.
--
-- Claimed jobs leave dead entries in the index until VACUUM, and a scan that begins at the lowest rank goes through all of
-- them. So for priority 0 a scan begins at the hint: the rank at which the last scan of any connection ended. A hint that is
-- too low only costs time. A hint is too high if jobs below it became ready or visible since the last full scan: jobs that were
-- released, or whose claim or enqueue ended late. With such a hint, a fair key without recent jobs is ranked behind these jobs,
-- and behind no others. Every second or two, one connection scans from the lowest rank again and corrects the hint.
--
-- Bits of the hint. From bit 52 on: 11 bits of the type id (the other 3 choose the sequence). From bit 10 on: the rank in ms.
-- Below: the second of the last full scan. Types that share a sequence and are busy at once overwrite each other's hint, and
-- then make full scans.
CREATE OR REPLACE FUNCTION howdah.fair_base(of_type integer, of_priority smallint, current_rank bigint, step bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    hints CONSTANT regclass := ('{howdah.fair_floor_0,howdah.fair_floor_1,howdah.fair_floor_2,howdah.fair_floor_3,howdah.fair_floor_4,howdah.fair_floor_5,howdah.fair_floor_6,howdah.fair_floor_7}'::regclass[])
        [(of_type & 7) + 1];
    this_second CONSTANT bigint := floor(date_part('epoch', clock_timestamp()))::bigint & 1023;
    mark CONSTANT bigint := (of_type >> 3 & 2047)::bigint << 52;
    hint bigint;
    known bigint;                        -- the rank of the hint, ms
    scan_second bigint := this_second;
    lowest bigint := current_rank - 2592000000000;
    found bigint;
BEGIN
    IF of_priority = 0 THEN
        hint := pg_sequence_last_value(hints);
        IF (hint >> 52) << 52 = mark THEN
            known := (hint >> 10) & 4398046511103;
            IF ((this_second - hint) & 1023) <= 1 THEN
                scan_second := hint & 1023;
                lowest := known * 1000;
            ELSE
                -- This connection makes the full scan. The new second in the hint keeps other connections from doing the same.
                PERFORM setval(hints, mark | (known << 10) | this_second);
            END IF;
        END IF;
    END IF;
    SELECT r.rank INTO found FROM howdah.ready r
    WHERE r.type_id = of_type AND r.rank >= lowest AND r.rank < current_rank + step / 2
    ORDER BY r.type_id, r.rank, r.id LIMIT 1;
    found := coalesce(found, current_rank);
    IF of_priority = 0 AND found / 1000 IS DISTINCT FROM known THEN
        PERFORM setval(hints, mark | (found / 1000 << 10) | scan_second);
    END IF;
    RETURN found;
END $$;

-- Notifies the brokers of jobs with ranks from `base` on, unless another connection has just announced them. Works like
-- howdah.announce (functions/announce.sql), with the same kind of sequence value. But with a fair key, the rank of a job may be
-- far from the current time. So an announcement also stores its lowest rank, and a transaction with jobs below that rank
-- notifies too.
CREATE OR REPLACE FUNCTION howdah.announce_fair(of_type integer, base bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    announced_seq CONSTANT regclass := ('{howdah.fair_announced_0,howdah.fair_announced_1,howdah.fair_announced_2,howdah.fair_announced_3,howdah.fair_announced_4,howdah.fair_announced_5,howdah.fair_announced_6,howdah.fair_announced_7}'::regclass[])
        [(of_type & 7) + 1];
    announced_from_seq CONSTANT regclass := ('{howdah.fair_announced_from_0,howdah.fair_announced_from_1,howdah.fair_announced_from_2,howdah.fair_announced_from_3,howdah.fair_announced_from_4,howdah.fair_announced_from_5,howdah.fair_announced_from_6,howdah.fair_announced_from_7}'::regclass[])
        [(of_type & 7) + 1];
    began_us CONSTANT bigint := howdah.rank_now();
    -- Another connection announced the type at most 20 ms before or 40 ms after the begin of this transaction.
    is_announced CONSTANT boolean := ((pg_sequence_last_value(announced_seq) # pg_backend_pid() # (of_type::bigint << 22))
        - ((began_us / 20000 & 1048575) << 42) + 4398046511103 & -13194143727616) IS NOT DISTINCT FROM 0;
BEGIN
    IF now() < clock_timestamp() - interval '80 ms' THEN
        PERFORM howdah.notify('r ' || of_type || ':' || base);
    ELSIF howdah.may_notify() AND (NOT is_announced OR pg_sequence_last_value(announced_from_seq) > base) THEN
        PERFORM setval(announced_from_seq, base), setval(announced_seq, howdah.announcement_mark(of_type, began_us));
        PERFORM howdah.notify('e ' || of_type || ':' || base);
    END IF;
END $$;

-- Gives new jobs with a fair key their ranks, so that jobs alternate between the fair keys of a type. No CTE before `given` has
-- a filter or a join: with one, Postgres would estimate one row instead of thousands, and scan all keys for each job.
CREATE OR REPLACE FUNCTION howdah.fair_ranks(jobs howdah.waiting[]) RETURNS howdah.waiting[] LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    ranked howdah.waiting[];
BEGIN
    WITH job AS MATERIALIZED (
        SELECT j.*, CASE WHEN j.options ? 'fair_key' AND j.attempt = 0 AND howdah.destination_of(j) IN ('ready', 'waiting_for_limit')
                         THEN (j.options ->> 'fair_key') COLLATE "C" END AS fair_key
        FROM unnest(jobs) j
    ),
    numbered AS MATERIALIZED (
        SELECT j.*, row_number() OVER (PARTITION BY j.type_id, j.priority, j.fair_key ORDER BY j.rank, j.id) AS nth FROM job j
    ),
    base AS MATERIALIZED (
        SELECT b.type_id, b.priority, howdah.fair_base(b.type_id, b.priority, b.priority * b.step + now_us, b.step) AS rank
        FROM (SELECT d.*, howdah.rank_step(d.type_id) AS step
              FROM (SELECT DISTINCT t.type_id, t.priority FROM numbered t WHERE t.fair_key IS NOT NULL) d
              OFFSET 0) b
    ),
    given AS (
        INSERT INTO howdah.fair_share AS f (type_id, priority, fair_key, last_rank, given)
        SELECT k.type_id, k.priority, k.fair_key,
               (SELECT b.rank FROM base b WHERE b.type_id = k.type_id AND b.priority = k.priority) + (k.given - 1) * howdah.fair_rank_distance(),
               k.given
        FROM (SELECT t.type_id, t.priority, t.fair_key, max(t.nth) AS given FROM numbered t WHERE t.fair_key IS NOT NULL GROUP BY 1, 2, 3) k
        ORDER BY 1, 2, 3
        ON CONFLICT (type_id, priority, fair_key) DO UPDATE SET given = excluded.given,
            last_rank = greatest(excluded.last_rank, f.last_rank + excluded.given * howdah.fair_rank_distance())
        RETURNING type_id, priority, fair_key, last_rank - (given - 1) * howdah.fair_rank_distance() AS first_rank
    )
    SELECT array_agg(ROW(t.id, coalesce(g.first_rank + (t.nth - 1) * howdah.fair_rank_distance(), t.rank), t.created, t.timeout_ms,
                         t.last_token, t.type_id, t.attempt, t.max_attempts, t.priority, t.key, t.limit_key, t.headers,
                         t.options, t.failures, t.payload)::howdah.waiting)
    INTO ranked
    FROM numbered t LEFT JOIN given g ON g.type_id = t.type_id AND g.priority = t.priority AND g.fair_key = t.fair_key;
    RETURN ranked;
END $$;
