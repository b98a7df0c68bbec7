-- The archive of finished jobs (docs/operate/archive.md): which days are to be archived, by whom, and what may be deleted.

-- Notes a job that comes to a day after it was sealed.
CREATE OR REPLACE FUNCTION howdah.note_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.archive_late (day, id) VALUES ((NEW.finished AT TIME ZONE 'UTC')::date, NEW.id);
    RETURN NULL;
END $$;

-- From now on each job that comes to this day's partition is noted. Creating the trigger waits for the transactions that
-- write to the partition; later ones have it. Others wait behind it, so it gives up soon.
CREATE OR REPLACE FUNCTION howdah.seal_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = format('howdah.%I', part)::regclass AND t.tgname = 'note_late') THEN
        PERFORM set_config('lock_timeout', '200ms', true);
        EXECUTE format('CREATE TRIGGER note_late AFTER INSERT ON howdah.%I FOR EACH ROW EXECUTE FUNCTION howdah.note_late()', part);
    END IF;
    -- What came before is part of what is written first.
    DELETE FROM howdah.archive_late l WHERE l.day = seal_day.day;
END $$;

-- The days before this one that have jobs which are not archived, the oldest first.
CREATE OR REPLACE FUNCTION howdah.days_to_archive(before date) RETURNS SETOF date LANGUAGE sql STABLE AS $$
    WITH days AS (
        SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'howdah.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
        UNION SELECT (finished AT TIME ZONE 'UTC')::date FROM howdah.history_default
        -- A forget has begun, and was killed: it has to be finished.
        UNION SELECT a.day FROM howdah.archive a WHERE a.rewrite IS NOT NULL
    )
    SELECT d.day FROM days d LEFT JOIN howdah.archive a ON a.day = d.day
    WHERE d.day < before
      AND (a.rewrite IS NOT NULL OR coalesce(a.state, 'dropped') <> 'archived' OR EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = d.day))
    ORDER BY 1
$$;

-- Takes a day for a run; no row: another run has it, or there is nothing to do. A day is sealed first. If it was dropped and
-- jobs came to it since, all jobs that it has now are written as another generation. The transaction that seals a day
-- has no statement before that reads its partition.
CREATE OR REPLACE FUNCTION howdah.take_day(day date, run text, held_by text, held interval, url text)
RETURNS SETOF howdah.archive LANGUAGE plpgsql AS $$
DECLARE
    a howdah.archive;
BEGIN
    -- A forget was killed when new files of the day were written: that is finished first.
    SELECT * INTO a FROM howdah.archive n WHERE n.day = take_day.day AND n.rewrite IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        IF a.held_until IS NULL OR a.held_until <= now() THEN
            RETURN QUERY UPDATE howdah.archive n SET run = take_day.run, held_by = take_day.held_by, held_until = now() + held, error = NULL
                         WHERE n.day = take_day.day RETURNING n.*;
        END IF;
        RETURN;
    END IF;
    -- A day that was dropped, and to which nothing came since.
    IF NOT howdah.has_table('history_' || to_char(day, 'YYYYMMDD'))
       AND NOT EXISTS (SELECT FROM howdah.history_default h WHERE h.finished >= day::timestamp AT TIME ZONE 'UTC'
                                                              AND h.finished < (day + 1)::timestamp AT TIME ZONE 'UTC') THEN
        RETURN;
    END IF;
    PERFORM howdah.make_day_partition('history', 'finished', day);
    INSERT INTO howdah.archive AS n (day, state, generation) VALUES (take_day.day, 'dropped', 0) ON CONFLICT DO NOTHING;
    SELECT * INTO a FROM howdah.archive n WHERE n.day = take_day.day FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR a.held_until > now() THEN
        RETURN;
    END IF;
    IF a.state = 'dropped' THEN
        PERFORM howdah.seal_day(day);
        a.state := 'sealed';
        a.generation := a.generation + 1;
    ELSIF a.state = 'archived' THEN
        a.generation := a.generation + 1;
        UPDATE howdah.archive_late l SET generation = a.generation WHERE l.day = take_day.day;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        a.state := 'late';
    END IF;
    RETURN QUERY UPDATE howdah.archive n SET state = a.state, generation = a.generation, run = take_day.run,
                     held_by = take_day.held_by, held_until = now() + held, error = NULL,
                     -- It stays where its first files are.
                     url = CASE WHEN n.manifest IS NULL THEN take_day.url ELSE n.url END
                 WHERE n.day = take_day.day RETURNING n.*;
END $$;

-- What the jobs of a day are compared by with the files: their number, the sum of their ids, and the sum of (id mod 65521) *
-- (bytes of the payload + 1). It reads some blocks of the partition, and says where to go on. late: only the jobs of this
-- generation that came later; null: all others.
CREATE OR REPLACE FUNCTION howdah.sums_of_day(day date, late integer, first_block bigint, blocks bigint,
                                   OUT jobs bigint, OUT ids numeric, OUT lengths numeric, OUT next_block bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF pg_relation_size('howdah.' || part) > (first_block + blocks) * current_setting('block_size')::bigint THEN
        next_block := first_block + blocks;
    END IF;
    EXECUTE format(
        'SELECT count(*), coalesce(sum(h.id), 0), '
               'coalesce(sum(mod(h.id, 65521) * (coalesce(howdah.archived_bytes(h.payload, h.options), 0) + 1)), 0) '
        'FROM howdah.%I h WHERE h.ctid >= %L::tid AND h.ctid < %L::tid '
        'AND CASE WHEN $2 IS NULL THEN NOT EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = $1 AND l.id = h.id) '
             'ELSE EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = $1 AND l.id = h.id AND l.generation = $2) END',
        part, format('(%s,0)', first_block), format('(%s,0)', first_block + blocks))
        INTO jobs, ids, lengths USING day, late;
END $$;

-- The size of a job's payload, which may be stored out of line.
CREATE OR REPLACE FUNCTION howdah.archived_bytes(payload bytea, options jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 2147483647)::bigint
                ELSE octet_length(payload) END;

-- Whether the jobs of a day may be deleted: nothing is archived, or all of them are.
CREATE OR REPLACE FUNCTION howdah.may_delete_day(day date) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT NOT EXISTS (SELECT FROM howdah.archive_target)
        OR EXISTS (SELECT FROM howdah.archive a WHERE a.day = may_delete_day.day AND a.state = 'archived')
           AND NOT EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = may_delete_day.day)
$$;
