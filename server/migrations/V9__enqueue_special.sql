-- A job on its way in. fate: 0 its request was made before, 1 the key's holder is kept, 2 new, 4 the holder
-- was replaced, 5 the key's version is not newer, 6 runs after the holder that runs now, 7 the holder was put off.
CREATE TYPE howdah.new_job AS (
    place integer, id bigint, request_no integer, fate smallint, answer_id bigint, start_us bigint, rank bigint,
    type_id integer, priority smallint, max_attempts smallint, timeout_ms bigint, key text, headers jsonb, options jsonb,
    payload bytea, data bytea, extra jsonb
);

-- As a row of waiting. It begins when it does, whatever it waits for.
CREATE FUNCTION howdah.as_waiting(j howdah.new_job) RETURNS howdah.waiting LANGUAGE sql STABLE AS $$
    SELECT ROW(j.id, j.rank, now(), j.timeout_ms, NULL, j.type_id, 0, j.max_attempts, j.priority, j.key, NULL, j.headers,
               CASE WHEN j.start_us IS NULL THEN j.options
                    ELSE coalesce(j.options, '{}') || jsonb_build_object('start_us', j.start_us) END,
               NULL, j.payload)::howdah.waiting
$$;

-- Routes new jobs, those behind others with what they wait for. A job that they name must be known: in this
-- statement, alive, dead or in history.
CREATE FUNCTION howdah.place_after(new howdah.new_job[], routed howdah.waiting[]) RETURNS SETOF howdah.woken
LANGUAGE plpgsql AS $$
DECLARE
    parents bigint[];
    live bigint[];
    unknown record;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(new) n WHERE n.extra ? 'after' OR n.extra ? 'after_places') THEN
        RETURN QUERY SELECT * FROM howdah.route(routed);
        RETURN;
    END IF;
    INSERT INTO howdah.dependency (after_id, job_id)
    SELECT e.value::bigint, n.id
    FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.extra -> 'after') e
    WHERE n.extra ? 'after' AND coalesce(n.fate, 2) IN (2, 6)
    UNION
    SELECT coalesce(p.answer_id, p.id), n.id
    FROM unnest(new) n CROSS JOIN LATERAL jsonb_array_elements_text(n.extra -> 'after_places') e
    JOIN unnest(new) p ON p.place = e.value::integer
    WHERE n.extra ? 'after_places' AND coalesce(n.fate, 2) IN (2, 6)
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT * FROM howdah.route(routed);

    -- Those of this call know already.
    SELECT array_agg(DISTINCT d.after_id) INTO parents
    FROM unnest(new) n JOIN howdah.dependency d ON d.job_id = n.id
    WHERE NOT EXISTS (SELECT FROM unnest(new) p WHERE p.id = d.after_id);
    IF parents IS NULL THEN
        RETURN;
    END IF;
    live := howdah.mark_special(parents, '{"special": true}');
    -- Those behind a dead job may wait until somebody retries it or gives it up.
    UPDATE howdah.dead x SET options = coalesce(x.options, '{}') || '{"special": true}'
    WHERE x.id = ANY (parents) AND x.id <> ALL (live);
    SELECT d.after_id, n.place INTO unknown
    FROM unnest(new) n JOIN howdah.dependency d ON d.job_id = n.id
    WHERE d.after_id = ANY (parents) AND d.after_id <> ALL (live)
      AND NOT EXISTS (SELECT FROM howdah.history h WHERE h.id = d.after_id)
      AND NOT EXISTS (SELECT FROM howdah.dead x WHERE x.id = d.after_id)
    ORDER BY n.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'names job %, which is not known: it never was, or is forgotten', unknown.after_id
            USING ERRCODE = 'HW001', DETAIL = unknown.place::text, HINT = 'after';
    END IF;
    -- What has ended already ends for them now.
    RETURN QUERY SELECT w.* FROM (
        SELECT array_agg(e.id) AS ids, array_agg(0) AS type_ids, array_agg(NULL::text) AS keys,
               array_agg('{}'::jsonb) AS options, array_agg(e.state) AS states
        FROM (SELECT h.id, h.outcome AS state FROM howdah.history h WHERE h.id = ANY (parents) AND h.id <> ALL (live)
              UNION SELECT x.id, 5::smallint FROM howdah.dead x WHERE x.id = ANY (parents) AND x.id <> ALL (live)) e) e,
        LATERAL howdah.after_end(e.ids, e.type_ids, e.keys, e.options, e.states) w
    WHERE e.ids IS NOT NULL;
END $$;

-- Whether a succeeded job goes to history.
CREATE FUNCTION howdah.keeps(mode text, failures jsonb, result bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE mode WHEN 'none' THEN false WHEN 'failures' THEN failures IS NOT NULL
                     WHEN 'without_empty' THEN failures IS NOT NULL OR result IS NOT NULL ELSE true END
$$;

-- The options of a job that goes on to its next stage; what it did in this one is noted, the last 100. A stage
-- that the worker has named goes on behind it in the list, if it is there.
CREATE FUNCTION howdah.next_stage(options jsonb, next_type integer, type_id integer, attempt smallint, leased_at timestamptz)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    left_over jsonb := coalesce(options -> 'stages', '[]');
    done jsonb := coalesce(options -> 'stages_done', '[]');
    place integer;
BEGIN
    SELECT s.n INTO place FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n)
    WHERE s.id::integer = next_type ORDER BY s.n LIMIT 1;
    SELECT coalesce(jsonb_agg(s.id ORDER BY s.n), '[]') INTO left_over
    FROM jsonb_array_elements(left_over) WITH ORDINALITY AS s(id, n) WHERE s.n > coalesce(place, 0);
    IF jsonb_array_length(done) >= 100 THEN
        done := done - 0;
    END IF;
    done := done || jsonb_build_object('type', type_id, 'attempt', attempt, 'started', leased_at, 'finished', now());
    options := coalesce(options, '{}') - 'expire_us' - 'start_us'
        || jsonb_build_object('special', true, 'stages', left_over, 'stages_done', done,
                              'key_type', coalesce(options -> 'key_type', to_jsonb(type_id)));
    IF options ->> 'stage_payload' = 'result' THEN
        options := options - 'payload_bytes';
    END IF;
    RETURN options;
END $$;
