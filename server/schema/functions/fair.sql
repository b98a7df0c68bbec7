-- Fair keys: the keys of a type take turns, by their ranks. Start-time fair queueing (Goyal, Vin, Cheng 1996): a key starts at
-- the rank that is lowest now, or one turn after its last one.

-- A turn: how far apart the ranks of two jobs of a key are, in µs of rank.
CREATE OR REPLACE FUNCTION howdah.fair_turn() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 1000::bigint;

-- The rank at which a key starts that had no turn of late: the lowest that is ready in this priority, whose ranks are at most half
-- a step away from the rank of the current time; or that one, if nothing is ready.
--
-- What was claimed before leaves dead entries in the index, until vacuum, and each look from below would go through all of them.
-- So for priority 0 a look begins where the last one of any connection ended: the hint. A hint that is too low costs time, and
-- nothing else. It can be too high only for what became ready, or visible, below it since the last look from below: a claim or an
-- enqueue that ended late, or a job that was released. A key that starts meanwhile is behind those, and behind no others. Every
-- second or two, one connection looks from below again, so that nothing of it lasts.
--
-- The hint: from bit 52 on 11 bits of the type (the other 3 choose the sequence), from bit 10 on the rank in ms, below it the
-- second of the last look from below. Types that share a sequence and are busy at once look from below.
CREATE OR REPLACE FUNCTION howdah.fair_base(of_type integer, of_priority smallint, current_rank bigint, step bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    hints CONSTANT regclass := ('{howdah.fair_floor_0,howdah.fair_floor_1,howdah.fair_floor_2,howdah.fair_floor_3,howdah.fair_floor_4,howdah.fair_floor_5,howdah.fair_floor_6,howdah.fair_floor_7}'::regclass[])
        [(of_type & 7) + 1];
    this_second CONSTANT bigint := floor(date_part('epoch', clock_timestamp()))::bigint & 1023;
    mark CONSTANT bigint := (of_type >> 3 & 2047)::bigint << 52;
    hint bigint;
    known bigint;                        -- the rank of the hint, ms
    looked bigint := this_second;
    lowest bigint := current_rank - 2592000000000;
    found bigint;
BEGIN
    IF of_priority = 0 THEN
        hint := pg_sequence_last_value(hints);
        IF (hint >> 52) << 52 = mark THEN
            known := (hint >> 10) & 4398046511103;
            IF ((this_second - hint) & 1023) <= 1 THEN
                looked := hint & 1023;
                lowest := known * 1000;
            ELSE
                -- The others go on with it.
                PERFORM setval(hints, mark | (known << 10) | this_second);
            END IF;
        END IF;
    END IF;
    SELECT r.rank INTO found FROM howdah.ready r
    WHERE r.type_id = of_type AND r.rank >= lowest AND r.rank < current_rank + step / 2
    ORDER BY r.type_id, r.rank, r.id LIMIT 1;
    found := coalesce(found, current_rank);
    IF of_priority = 0 AND found / 1000 IS DISTINCT FROM known THEN
        PERFORM setval(hints, mark | (found / 1000 << 10) | looked);
    END IF;
    RETURN found;
END $$;

-- Notifies the brokers of jobs with ranks from this one on, unless another connection does: as functions/announce.sql does it for
-- jobs whose rank is the current time, with a mark of the same form. Here ranks may be far from the time, so an announcement says
-- from which rank on it holds, and only jobs from there on may rely on it.
CREATE OR REPLACE FUNCTION howdah.announce_fair(of_type integer, base bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    told CONSTANT regclass := ('{howdah.fair_told_0,howdah.fair_told_1,howdah.fair_told_2,howdah.fair_told_3,howdah.fair_told_4,howdah.fair_told_5,howdah.fair_told_6,howdah.fair_told_7}'::regclass[])
        [(of_type & 7) + 1];
    told_from CONSTANT regclass := ('{howdah.fair_told_from_0,howdah.fair_told_from_1,howdah.fair_told_from_2,howdah.fair_told_from_3,howdah.fair_told_from_4,howdah.fair_told_from_5,howdah.fair_told_from_6,howdah.fair_told_from_7}'::regclass[])
        [(of_type & 7) + 1];
    began_us CONSTANT bigint := howdah.rank_now();
    -- 20 ms before to 40 ms after, by another connection.
    is_told CONSTANT boolean := ((pg_sequence_last_value(told) # pg_backend_pid() # (of_type::bigint << 22))
        - ((began_us / 20000 & 1048575) << 42) + 4398046511103 & -13194143727616) IS NOT DISTINCT FROM 0;
BEGIN
    IF now() < clock_timestamp() - interval '80 ms' THEN
        PERFORM howdah.notify('r ' || of_type || ':' || base);
    ELSIF howdah.may_notify() AND (NOT is_told OR pg_sequence_last_value(told_from) > base) THEN
        PERFORM setval(told_from, base), setval(told, howdah.announcement_mark(of_type, began_us));
        PERFORM howdah.notify('e ' || of_type || ':' || base);
    END IF;
END $$;

-- Gives new jobs with a fair key ranks in which the keys of a type take turns. Nothing is filtered or joined before `given`:
-- Postgres would expect one row of thousands, and go through all keys for each job.
CREATE OR REPLACE FUNCTION howdah.fair_ranks(jobs howdah.waiting[]) RETURNS howdah.waiting[] LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := (extract(epoch FROM now()) * 1000000)::bigint;
    ranked howdah.waiting[];
BEGIN
    WITH job AS MATERIALIZED (
        SELECT j.*, CASE WHEN j.options ? 'fair_key' AND j.attempt = 0 AND howdah.destination_of(j) IN ('ready', 'waiting_for_limit')
                         THEN j.options ->> 'fair_key' END AS fair_key
        FROM unnest(jobs) j
    ),
    turn AS MATERIALIZED (
        SELECT j.*, row_number() OVER (PARTITION BY j.type_id, j.priority, j.fair_key ORDER BY j.rank, j.id) AS nth FROM job j
    ),
    base AS MATERIALIZED (
        SELECT b.type_id, b.priority, howdah.fair_base(b.type_id, b.priority, b.priority * b.step + now_us, b.step) AS rank
        FROM (SELECT d.*, howdah.rank_step(d.type_id) AS step
              FROM (SELECT DISTINCT t.type_id, t.priority FROM turn t WHERE t.fair_key IS NOT NULL) d
              OFFSET 0) b
    ),
    given AS (
        INSERT INTO howdah.fair_share AS f (type_id, priority, fair_key, last_rank, given)
        SELECT k.type_id, k.priority, k.fair_key,
               (SELECT b.rank FROM base b WHERE b.type_id = k.type_id AND b.priority = k.priority) + (k.given - 1) * howdah.fair_turn(),
               k.given
        FROM (SELECT t.type_id, t.priority, t.fair_key, max(t.nth) AS given FROM turn t WHERE t.fair_key IS NOT NULL GROUP BY 1, 2, 3) k
        ORDER BY 1, 2, 3
        ON CONFLICT (type_id, priority, fair_key) DO UPDATE SET given = excluded.given,
            last_rank = greatest(excluded.last_rank, f.last_rank + excluded.given * howdah.fair_turn())
        RETURNING type_id, priority, fair_key, last_rank - (given - 1) * howdah.fair_turn() AS first_rank
    )
    SELECT array_agg(ROW(t.id, coalesce(g.first_rank + (t.nth - 1) * howdah.fair_turn(), t.rank), t.created, t.timeout_ms,
                         t.last_token, t.type_id, t.attempt, t.max_attempts, t.priority, t.key, t.limit_key, t.headers,
                         t.options, t.failures, t.payload)::howdah.waiting)
    INTO ranked
    FROM turn t LEFT JOIN given g ON g.type_id = t.type_id AND g.priority = t.priority AND g.fair_key = t.fair_key;
    RETURN ranked;
END $$;
