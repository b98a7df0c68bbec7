-- The archive of finished jobs (docs/operate/archive.md): the days to archive, the runs that work on them, and the data that
-- may be deleted.

-- Trigger function: records a job that is added to a day's partition of history after the day was sealed.
CREATE OR REPLACE FUNCTION howdah.note_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO howdah.archive_late (day, id) VALUES ((NEW.finished AT TIME ZONE 'UTC')::date, NEW.id)
    -- The job was recorded as late before, was restored, and has ended again. The next archive run writes it again.
    ON CONFLICT (day, id) DO UPDATE SET generation = NULL;
    RETURN NULL;
END $$;

-- Seals a day for its archive run: creates a trigger that records each job that is added to the day's partition from now on.
-- Creating the trigger waits for transactions that write to the partition, and blocks new ones, so it gives up after 200 ms.
CREATE OR REPLACE FUNCTION howdah.seal_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = format('howdah.%I', part)::regclass AND t.tgname = 'note_late') THEN
        PERFORM set_config('lock_timeout', '200ms', true);
        EXECUTE format('CREATE TRIGGER note_late AFTER INSERT ON howdah.%I FOR EACH ROW EXECUTE FUNCTION howdah.note_late()', part);
    END IF;
    -- Delete records of jobs that were added before the seal: the first archive run writes these jobs anyway.
    DELETE FROM howdah.archive_late l WHERE l.day = seal_day.day;
END $$;

-- Returns the days before `before` with jobs that are not archived, the oldest first.
CREATE OR REPLACE FUNCTION howdah.days_to_archive(before date) RETURNS SETOF date LANGUAGE sql STABLE AS $$
    WITH days AS (
        SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'howdah.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
        UNION SELECT (finished AT TIME ZONE 'UTC')::date FROM howdah.history_default
        -- A killed howdah archive forget was rewriting the day's files. An archive run has to finish the rewrite.
        UNION SELECT a.day FROM howdah.archive a WHERE a.rewrite IS NOT NULL
    )
    SELECT d.day FROM days d LEFT JOIN howdah.archive a ON a.day = d.day
    WHERE d.day < before
      AND (a.rewrite IS NOT NULL OR coalesce(a.state, 'dropped') <> 'archived' OR EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = d.day))
    ORDER BY 1
$$;

-- Reserves a day for an archive run, and seals the day if it is not sealed. Returns no row if another run has reserved the day,
-- or if the day has nothing to archive. If jobs were added to a day after its partition was dropped, the run writes all of the
-- day's current jobs as another generation. The transaction that seals a day must not have read its partition before.
CREATE OR REPLACE FUNCTION howdah.take_day(day date, run text, held_by text, held interval, url text)
RETURNS SETOF howdah.archive LANGUAGE plpgsql AS $$
DECLARE
    a howdah.archive;
BEGIN
    -- A killed howdah archive forget was rewriting the day's files. The run finishes the rewrite first.
    SELECT * INTO a FROM howdah.archive n WHERE n.day = take_day.day AND n.rewrite IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        IF a.held_until IS NULL OR a.held_until <= now() THEN
            RETURN QUERY UPDATE howdah.archive n SET run = take_day.run, held_by = take_day.held_by, held_until = now() + held, error = NULL
                         WHERE n.day = take_day.day RETURNING n.*;
        END IF;
        RETURN;
    END IF;
    -- Nothing to archive: the day's partition was dropped, and no job has been added to the day since.
    IF NOT howdah.has_table('history_' || to_char(day, 'YYYYMMDD'))
       AND NOT EXISTS (SELECT FROM howdah.history_default h WHERE h.finished >= day::timestamp AT TIME ZONE 'UTC'
                                                              AND h.finished < (day + 1)::timestamp AT TIME ZONE 'UTC') THEN
        RETURN;
    END IF;
    PERFORM howdah.move_day('history', 'finished', day, true);
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
                     held_by = take_day.held_by, held_until = clock_timestamp() + held, error = NULL,
                     -- A day with files keeps the URL of these files, even if the brokers' archive URL has changed.
                     url = CASE WHEN n.manifest IS NULL THEN take_day.url ELSE n.url END
                 WHERE n.day = take_day.day RETURNING n.*;
END $$;

-- Returns the checksums that are compared with the files of a day: the number of jobs, the sum of their ids, and the sum of (id
-- mod 65521) * (bytes of the payload + 1). One call reads some blocks of the partition, and returns the block at which the next
-- call begins. late: the generation whose late jobs are summed; null: all jobs that were not late. Late jobs were added after
-- the day was sealed.
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

-- Returns the size of a job's payload, which may be stored out of line.
CREATE OR REPLACE FUNCTION howdah.archived_bytes(payload bytea, options jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 2147483647)::bigint
                ELSE octet_length(payload) END;

-- Returns whether the jobs of a day may be deleted: the brokers use no archive, or the archive contains all jobs of the day.
CREATE OR REPLACE FUNCTION howdah.may_delete_day(day date) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT NOT EXISTS (SELECT FROM howdah.archive_target)
        OR EXISTS (SELECT FROM howdah.archive a WHERE a.day = may_delete_day.day AND a.state = 'archived')
           AND NOT EXISTS (SELECT FROM howdah.archive_late l WHERE l.day = may_delete_day.day)
$$;
