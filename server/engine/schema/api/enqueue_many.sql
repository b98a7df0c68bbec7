-- Enqueues many jobs.

-- Stores many jobs of one type and returns their ids, in the order of the payloads.
CREATE OR REPLACE FUNCTION howdah.enqueue_many(task_type text, payloads bytea[], headers jsonb DEFAULT NULL, priority integer DEFAULT 0,
                                               tags text[] DEFAULT NULL)
RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    t howdah.task_type := howdah.type_named(task_type, 'task_type');
    step bigint := coalesce(t.priority_step_us, howdah.default_step());
    the_rank bigint;
    n integer := coalesce(cardinality(payloads), 0);
    common jsonb := jsonb_strip_nulls(jsonb_build_object(
        'parent_id', howdah.running_job(), 'tags', howdah.tags_of('tags', to_jsonb(tags), {{tag_limits}})));
    bad record;
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    IF s.closed IS NOT NULL THEN
        PERFORM howdah.refuse_closed();
    END IF;
    priority := coalesce(howdah.number_of('priority', priority::text, -1000, 1000), 0);
    the_rank := priority * step + (extract(epoch FROM now()) * 1000000)::bigint;
    headers := howdah.headers_of('headers', headers, s);
    IF n > 1000000 THEN
        PERFORM howdah.refuse('payloads', format('has %s entries; at most 1000000 are allowed', n));
    END IF;
    SELECT u.p, u.ordinal - 1 AS index INTO bad FROM unnest(payloads) WITH ORDINALITY AS u(p, ordinal)
    WHERE u.p IS NULL OR octet_length(u.p) > least(t.max_payload_bytes, s.payload_bytes) ORDER BY u.ordinal LIMIT 1;
    IF FOUND THEN
        PERFORM howdah.check_payload(format('payloads[%s]', bad.index), bad.p, t, s);
    END IF;
    IF n = 0 THEN
        RETURN;
    END IF;
    PERFORM howdah.announce(t.id, the_rank);
    RETURN QUERY
    WITH i AS MATERIALIZED (SELECT nextval('howdah.job_id') AS id, u.p, octet_length(u.p) > 1024 AS out_of_line FROM unnest(payloads) AS u(p)),
    stored AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, headers, options, payload)
        SELECT i.id, the_rank, now(), t.timeout_ms, t.id, 0, coalesce(t.max_attempts, 10), enqueue_many.priority,
               enqueue_many.headers,
               howdah.with_step(CASE WHEN i.out_of_line THEN common || jsonb_build_object('payload_bytes', octet_length(i.p))
                                     ELSE nullif(common, '{}') END,
                                enqueue_many.priority::smallint, step),
               CASE WHEN i.out_of_line THEN '' ELSE i.p END
        FROM i
    ),
    out_of_line AS (INSERT INTO howdah.payload (id, created, data) SELECT i.id, now(), i.p FROM i WHERE i.out_of_line),
    tagged AS (
        INSERT INTO howdah.job_tag (id, created, hash, type_id)
        SELECT i.id, now(), hashtext(e.tag), t.id FROM i CROSS JOIN jsonb_array_elements_text(common -> 'tags') AS e(tag)
        WHERE common ? 'tags'
    ),
    counted AS (INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (t.id, n))
    SELECT i.id FROM i;
END $$;

CREATE OR REPLACE FUNCTION howdah.enqueue_many(task_type text, payloads text[], headers jsonb DEFAULT NULL, priority integer DEFAULT 0,
                                               tags text[] DEFAULT NULL)
RETURNS SETOF bigint LANGUAGE sql AS $$
    SELECT howdah.enqueue_many($1, ARRAY(SELECT pg_catalog.convert_to(p, 'UTF8')
                                         FROM pg_catalog.unnest($2) WITH ORDINALITY u(p, n) ORDER BY n), $3, $4, $5)
$$;

CREATE OR REPLACE FUNCTION howdah.enqueue_many(task_type text, payloads jsonb[], headers jsonb DEFAULT NULL, priority integer DEFAULT 0,
                                               tags text[] DEFAULT NULL)
RETURNS SETOF bigint LANGUAGE sql AS $$ SELECT howdah.enqueue_many($1, $2::pg_catalog.text[], $3, $4, $5) $$;

-- Stores jobs with any options, all or none. jobs is an array of objects with the options of enqueue by name; a null option
-- counts as left out. A payload that is a text is stored unchanged, any other as JSON; payload_base64 is for bytes. With
-- after_local, a job runs after earlier jobs of the array, which it names by their local_name.
CREATE OR REPLACE FUNCTION howdah.enqueue_batch(jobs jsonb, request_key text DEFAULT NULL)
RETURNS TABLE (id bigint, outcome text) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    cs howdah.checked_job[];
    c howdah.checked_job;
    j jsonb;
    p text;
    data bytea;
    ordinals jsonb := '{}';
    parents jsonb;
    local_name text;
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    IF s.closed IS NOT NULL THEN
        PERFORM howdah.refuse_closed();
    END IF;
    IF jsonb_typeof(jobs) IS DISTINCT FROM 'array' OR jsonb_array_length(jobs) NOT BETWEEN 1 AND s.batch THEN
        PERFORM howdah.refuse('jobs', format('is not an array of 1 to %s objects', s.batch));
    END IF;
    FOR i IN 0..jsonb_array_length(jobs) - 1 LOOP
        j := jobs -> i;
        p := format('jobs[%s]', i);
        IF jsonb_typeof(j) <> 'object' THEN
            PERFORM howdah.refuse(p, 'is not an object');
        END IF;
        p := p || '.';
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO j FROM jsonb_each(j) o WHERE o.value <> 'null';
        PERFORM howdah.check_texts(p, j, 'payload_base64', 'local_name');
        PERFORM howdah.check_array(p || 'after_local', j -> 'after_local', 'string', s.batch, 'local names');
        IF j ? 'payload' AND j ? 'payload_base64' THEN
            PERFORM howdah.refuse(p || 'payload_base64', 'is set together with payload; set one of them');
        END IF;
        data := convert_to(coalesce(j ->> 'payload', ''), 'UTF8');
        IF j ? 'payload_base64' THEN
            BEGIN
                data := decode(j ->> 'payload_base64', 'base64');
            EXCEPTION WHEN data_exception THEN
                PERFORM howdah.refuse(p || 'payload_base64', 'is not base64');
            END;
        END IF;
        local_name := howdah.text_of(p || 'local_name', j ->> 'local_name', s.key_bytes);
        SELECT jsonb_agg(ordinals -> n.name ORDER BY n.nth) INTO parents
        FROM jsonb_array_elements_text(j -> 'after_local') WITH ORDINALITY AS n(name, nth);
        IF parents @> 'null' THEN
            PERFORM howdah.refuse(p || 'after_local', 'names a job that does not come before it in jobs');
        ELSIF ordinals ? local_name THEN
            PERFORM howdah.refuse(p || 'local_name', howdah.quoted(local_name) || ' is the name of another job; give each job its own');
        END IF;
        c := howdah.check_job(j - '{payload,payload_base64}'::text[], data, p, s);
        IF parents IS NOT NULL THEN
            c.options := c.options || jsonb_build_object('after_ordinals', parents);
        END IF;
        IF local_name IS NOT NULL THEN
            ordinals := ordinals || jsonb_build_object(local_name, i + 1);
        END IF;
        cs[i + 1] := c;
    END LOOP;
    RETURN QUERY SELECT * FROM howdah.store_jobs(cs, howdah.own_request_key(howdah.text_of('request_key', enqueue_batch.request_key, s.key_bytes)),
                                                 sha256(convert_to(jobs::text, 'UTF8')), true);
END $$;
