-- Deletes finished jobs of the database before the end of their retention (howdah archive forget).

-- Deletes jobs of one history partition, selected by key, type and time, with their payloads, or only counts the jobs. With a
-- key, a call deletes at most 1,000 jobs, which it finds by the index on keys. Without a key, it reads `blocks` blocks from
-- first_block on. next_block is the first block of the next call; null: nothing is left. ids: ids of the first ten deleted
-- jobs.
CREATE OR REPLACE FUNCTION howdah.forget_history(part text, of_key text, of_type integer, before timestamptz, only_count boolean,
                                                 first_block bigint, blocks bigint,
                                                 OUT jobs bigint, OUT ids bigint[], OUT types integer[], OUT next_block bigint)
LANGUAGE plpgsql AS $$
DECLARE
    chosen text := 'TRUE';
BEGIN
    jobs := 0;
    -- The partition has been dropped since the caller listed it.
    IF to_regclass(format('howdah.%I', part)) IS NULL THEN
        RETURN;
    END IF;
    IF of_key IS NOT NULL THEN
        chosen := 'hashtext(h.key) = hashtext($1) AND h.key = $1';
    ELSE
        chosen := format('h.ctid >= %L::tid AND h.ctid < %L::tid', format('(%s,0)', first_block), format('(%s,0)', first_block + blocks));
        IF pg_relation_size(format('howdah.%I', part)::regclass) > (first_block + blocks) * current_setting('block_size')::bigint THEN
            next_block := first_block + blocks;
        END IF;
    END IF;
    chosen := chosen || CASE WHEN of_type IS NULL THEN '' ELSE ' AND h.type_id = $2' END
                     || CASE WHEN before IS NULL THEN '' ELSE ' AND h.finished < $3' END;
    IF only_count THEN
        EXECUTE format('SELECT count(*) FROM howdah.%I h WHERE %s', part, chosen) INTO jobs USING of_key, of_type, before;
        RETURN;
    END IF;
    EXECUTE format(
        'WITH deleted AS (DELETE FROM howdah.%I WHERE ctid = ANY (ARRAY(SELECT h.ctid FROM howdah.%I h WHERE %s%s)) '
                         'RETURNING id, type_id, finished, options), '
             'out_of_line AS (DELETE FROM howdah.payload WHERE id = ANY (ARRAY('
                             'SELECT id FROM deleted WHERE options ? ''payload_bytes''))), '
             'late AS (DELETE FROM howdah.archive_late l USING deleted d '
                      'WHERE l.day = (d.finished AT TIME ZONE ''UTC'')::date AND l.id = d.id) '
        'SELECT count(*), (array_agg(id))[:10], array_agg(DISTINCT type_id) FROM deleted',
        part, part, chosen, CASE WHEN of_key IS NULL THEN '' ELSE ' LIMIT 1000' END)
        INTO jobs, ids, types USING of_key, of_type, before;
    IF of_key IS NOT NULL AND jobs = 1000 THEN
        next_block := 0;
    END IF;
END $$;
