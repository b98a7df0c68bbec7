-- Records every change of the job tables and of howdah.broker. For tests only, because the triggers double the cost
-- of each statement.
CREATE SCHEMA trace;
CREATE TABLE trace.change (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction   bigint NOT NULL,
    table_name    text NOT NULL,
    is_insert     boolean NOT NULL,
    job           bigint NOT NULL,
    token         bigint,
    number        integer,
    last_token    bigint,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    is_live       boolean,
    is_late       boolean,
    by            text NOT NULL
);

-- now() is the start time of the transaction that changed the row, the time with which the recorded statement
-- compared expires. So is_live is right although this trigger runs later.
CREATE FUNCTION trace.record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - 'payload' END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - 'payload' END;
    r jsonb;
BEGIN
    FOREACH r IN ARRAY ARRAY[old_row, new_row] LOOP
        CONTINUE WHEN r IS NULL;
        INSERT INTO trace.change (transaction, table_name, is_insert, job, token, number, last_token, attempt, max_attempts,
                                  is_live, is_late, by)
        SELECT txid_current(), TG_TABLE_NAME, r = new_row AND TG_OP <> 'DELETE', (r ->> 'id')::bigint, 
               CASE WHEN TG_TABLE_NAME = 'leased' THEN (r ->> 'token')::bigint END, (r ->> 'broker_id')::integer,
               coalesce((r ->> 'last_token')::bigint, CASE WHEN TG_TABLE_NAME LIKE 'history%' THEN (r ->> 'token')::bigint END),
               coalesce((r ->> 'attempt')::smallint, 0), coalesce((r ->> 'max_attempts')::smallint, 0),
               (SELECT b.expires > now() FROM howdah.broker b WHERE b.id = (r ->> 'broker_id')::integer),
               (r ->> 'deadline')::timestamptz <= now(), current_setting('application_name');
    END LOOP;
    RETURN NULL;
END $$;

DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['ready', 'scheduled', 'waiting', 'dead', 'history'] LOOP
        EXECUTE format('CREATE TRIGGER trace AFTER INSERT OR DELETE ON howdah.%I FOR EACH ROW EXECUTE FUNCTION trace.record()', t);
    END LOOP;
END $$;
CREATE TRIGGER trace AFTER INSERT OR DELETE ON howdah.leased FOR EACH ROW EXECUTE FUNCTION trace.record();
-- Records an update only if the lease gets another broker or token. Updates of deadline and progress are skipped.
CREATE TRIGGER trace_adopted AFTER UPDATE ON howdah.leased FOR EACH ROW
    WHEN (OLD.broker_id IS DISTINCT FROM NEW.broker_id OR OLD.token <> NEW.token) EXECUTE FUNCTION trace.record();
CREATE TRIGGER trace AFTER INSERT ON howdah.broker FOR EACH ROW EXECUTE FUNCTION trace.record();
