-- Functions for the target store of a task type that moves to another store. Each is one idempotent transaction, so it can be
-- repeated after a crash.

-- Records that jobs of a type are about to arrive. Returns the new version of the settings. Brokers that have read this version
-- claim no jobs of the type until end_arrival.
CREATE OR REPLACE FUNCTION howdah.begin_arrival(of_type integer, of_store integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    INSERT INTO howdah.type_arrival (type_id, from_number, claims_held) VALUES (of_type, of_store, true)
    ON CONFLICT (type_id) DO UPDATE SET from_number = excluded.from_number, claims_held = true;
    UPDATE howdah.settings s SET version = s.version + 1 RETURNING s.version INTO new_version;
    RETURN new_version;
END $$;

-- Stores settings of limit keys of a task type that arrive from another store: own limits and pauses, null if a key has none.
-- Unless `replaces` is set, keys that have their own limit or are paused here keep their settings.
CREATE OR REPLACE FUNCTION howdah.arrive_key_settings(of_type integer, keys text[], most integer[], paused_until timestamptz[],
                                                      replaces boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    FOR k IN SELECT u.* FROM unnest(keys, most, paused_until) AS u(key, most, until)
             LEFT JOIN howdah.limit_state g ON g.type_id = of_type AND g.limit_key = u.key
             WHERE replaces OR (g.max_running IS NULL AND coalesce(g.paused_until < now(), true))
             ORDER BY u.key COLLATE "C"
    LOOP
        IF k.most IS NOT NULL THEN
            PERFORM howdah.replace_key_limit(of_type, k.key, k.most);
        END IF;
        IF k.until IS NOT NULL THEN
            PERFORM howdah.pause_limit_key(of_type, k.key, k.until);
        END IF;
    END LOOP;
END $$;

-- Makes this store the home of a task type: sets the creation time of the type before `oldest`, the earliest one in any other
-- store. Returns the new version of the settings.
CREATE OR REPLACE FUNCTION howdah.make_home_store(of_type integer, oldest timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    UPDATE howdah.task_type t SET created = oldest - interval '1 microsecond' WHERE t.id = of_type AND t.created >= oldest;
    UPDATE howdah.settings s SET version = s.version + 1 RETURNING s.version INTO new_version;
    RETURN new_version;
END $$;

-- Ends the arrival after all jobs that could move have arrived: brokers claim jobs of the type again. Returns the new version
-- of the settings.
CREATE OR REPLACE FUNCTION howdah.end_arrival(of_type integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
BEGIN
    UPDATE howdah.type_arrival a SET claims_held = false WHERE a.type_id = of_type;
    UPDATE howdah.settings s SET version = s.version + 1 RETURNING s.version INTO new_version;
    RETURN new_version;
END $$;

-- Stores jobs that arrive from another store, each once, with new ids. A job whose key is held by a job of this store is not
-- stored: its new id is null.
CREATE OR REPLACE FUNCTION howdah.arrive_jobs(of_type integer, old_ids bigint[], jobs jsonb[], payloads bytea[])
RETURNS TABLE (old_id bigint, new_id bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[];
    refused bigint[];
BEGIN
    WITH new AS (
        INSERT INTO howdah.arrived (old_id, new_id)
        SELECT u.id, nextval('howdah.job_id') FROM (SELECT o.id FROM unnest(old_ids) AS o(id) ORDER BY o.id) u
        ON CONFLICT DO NOTHING RETURNING old_id
    )
    SELECT array_agg(n.old_id) INTO fresh FROM new n;
    IF fresh IS NOT NULL THEN
        WITH keyed AS (
            SELECT u.old_id, (SELECT a.new_id FROM howdah.arrived a WHERE a.old_id = u.old_id) AS new_id,
                   u.job ->> 'key' AS key, u.job -> 'key_row' AS held
            FROM unnest(old_ids, jobs) AS u(old_id, job) WHERE u.old_id = ANY (fresh) AND u.job -> 'key_row' IS NOT NULL
        ),
        taken AS (
            INSERT INTO howdah.job_key (type_id, key, job_id, version, held_until, debounce_until)
            SELECT of_type, k.key, k.new_id, (k.held ->> 'version')::bigint, (k.held ->> 'held_until')::timestamptz,
                   (k.held ->> 'debounce_until')::timestamptz
            FROM keyed k ORDER BY k.key COLLATE "C"
            ON CONFLICT DO NOTHING RETURNING job_id
        )
        SELECT array_agg(k.old_id) INTO refused FROM keyed k WHERE k.new_id NOT IN (SELECT t.job_id FROM taken t);
        DELETE FROM howdah.arrived a WHERE a.old_id = ANY (refused);
        PERFORM howdah.store_moved(array_agg(u.new_id ORDER BY u.n), of_type, array_agg(u.job ORDER BY u.n), array_agg(u.payload ORDER BY u.n))
        FROM (SELECT o.*, (SELECT a.new_id FROM howdah.arrived a WHERE a.old_id = o.old_id) AS new_id
              FROM unnest(old_ids, jobs, payloads) WITH ORDINALITY AS o(old_id, job, payload, n) WHERE o.old_id = ANY (fresh)) u
        WHERE u.new_id IS NOT NULL;
    END IF;
    RETURN QUERY SELECT u.id, (SELECT a.new_id FROM howdah.arrived a WHERE a.old_id = u.id) FROM unnest(old_ids) AS u(id);
END $$;

-- Stores jobs in the format of howdah.leaving under the given ids, and notifies the brokers. Used for jobs that arrive in the
-- target store, and for jobs that return to the source store. Scheduled jobs that became due in transit are stored as ready,
-- because brokers search only for jobs that are due after their last search (promote.sql).
CREATE OR REPLACE FUNCTION howdah.store_moved(ids bigint[], of_type integer, jobs jsonb[], payloads bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    IF coalesce(cardinality(ids), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM howdah.create_task_types(n.names, NULL)
    FROM (SELECT array_agg(DISTINCT t.name) AS names
          FROM unnest(jobs) j CROSS JOIN LATERAL (VALUES (j ->> 'fallback'), (j ->> 'fallback_from')) t(name)
          WHERE t.name IS NOT NULL) n WHERE n.names IS NOT NULL;
    WITH n AS MATERIALIZED (
        SELECT u.id, x.*, u.payload, octet_length(u.payload) > 1024 AS is_large,
               CASE WHEN u.job ->> 'state' = 'scheduled' AND x.run_at <= now() THEN 'ready' ELSE u.job ->> 'state' END AS state,
               nullif(coalesce(x.options, '{}') - '{payload_bytes,fallback,fallback_from}'::text[]
                      || CASE WHEN octet_length(u.payload) > 1024 THEN jsonb_build_object('payload_bytes', octet_length(u.payload)) ELSE '{}' END
                      || jsonb_strip_nulls(jsonb_build_object(
                             'fallback', (SELECT t.id FROM howdah.task_type t WHERE t.name = u.job ->> 'fallback'),
                             'fallback_from', (SELECT t.id FROM howdah.task_type t WHERE t.name = u.job ->> 'fallback_from'))),
                      '{}') AS new_options
        FROM unnest(ids, jobs, payloads) AS u(id, job, payload)
        CROSS JOIN LATERAL jsonb_to_record(u.job) AS x(
            rank bigint, created timestamptz, timeout_ms bigint, run_at timestamptz, leased_at timestamptz, died timestamptz,
            attempt smallint, max_attempts smallint, priority smallint, key text, headers jsonb, options jsonb, failures jsonb)
    ),
    now_ready AS (
        INSERT INTO howdah.ready (id, rank, created, timeout_ms, type_id, attempt, max_attempts, priority, key, headers, options, failures, payload)
        SELECT n.id, n.rank, n.created, n.timeout_ms, of_type, n.attempt, n.max_attempts, n.priority, n.key, n.headers, n.new_options,
               n.failures, CASE WHEN n.is_large THEN '' ELSE n.payload END
        FROM n WHERE n.state = 'ready'
    ),
    later AS (
        INSERT INTO howdah.scheduled (id, rank, created, timeout_ms, run_at, leased_at, type_id, attempt, max_attempts, priority, key,
                                      headers, options, failures, payload)
        SELECT n.id, n.rank, n.created, n.timeout_ms, n.run_at, n.leased_at, of_type, n.attempt, n.max_attempts, n.priority, n.key,
               n.headers, n.new_options, n.failures, CASE WHEN n.is_large THEN '' ELSE n.payload END
        FROM n WHERE n.state = 'scheduled'
    ),
    ended AS (
        INSERT INTO howdah.dead (id, rank, created, timeout_ms, leased_at, died, type_id, attempt, max_attempts, priority, key, headers,
                                 options, failures, payload)
        SELECT n.id, n.rank, n.created, n.timeout_ms, n.leased_at, n.died, of_type, n.attempt, n.max_attempts, n.priority, n.key,
               n.headers, n.new_options, n.failures, CASE WHEN n.is_large THEN '' ELSE n.payload END
        FROM n WHERE n.state = 'dead'
    ),
    out_of_line AS (
        INSERT INTO howdah.payload (id, created, data) SELECT n.id, now(), n.payload FROM n WHERE n.is_large
    ),
    expiring AS (
        INSERT INTO howdah.expiry (expire_at, id)
        SELECT to_timestamp((n.options ->> 'expire_at_us')::bigint / 1000000.0), n.id FROM n
        WHERE jsonb_typeof(n.options -> 'expire_at_us') = 'number' AND n.state <> 'dead'
        ON CONFLICT DO NOTHING
    ),
    tagged AS (
        INSERT INTO howdah.job_tag (id, created, hash, type_id)
        SELECT n.id, now(), hashtext(t.tag), of_type
        FROM n CROSS JOIN LATERAL jsonb_array_elements_text(
            CASE jsonb_typeof(n.options -> 'tags') WHEN 'array' THEN n.options -> 'tags' ELSE '[]' END) AS t(tag)
        WHERE n.options -> 'tags' IS NOT NULL
    )
    SELECT min(n.rank) FILTER (WHERE n.state = 'ready') AS lowest, bool_or(n.state = 'scheduled') AS has_later INTO r FROM n;
    IF r.lowest IS NOT NULL THEN
        PERFORM howdah.announce(of_type, r.lowest);
    END IF;
    IF r.has_later THEN
        PERFORM howdah.notify('s');
    END IF;
END $$;

-- Stores schedules that arrive from another store. Returns the names of the stored schedules, also of those that an earlier
-- call has stored. A schedule is not stored if this store has another schedule of that name.
CREATE OR REPLACE FUNCTION howdah.arrive_schedules(schedules jsonb[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM howdah.store_schedules(schedules);
    RETURN QUERY SELECT s.name FROM unnest(schedules) AS j(row) JOIN howdah.schedule s
                     ON s.name = j.row ->> 'name' AND s.created = (j.row ->> 'created')::timestamptz;
END $$;

-- Stores schedules in the format that leave_schedules returns. Skips a schedule if its name is taken.
CREATE OR REPLACE FUNCTION howdah.store_schedules(schedules jsonb[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH stored AS (
        INSERT INTO howdah.schedule
        SELECT (jsonb_populate_record(NULL::howdah.schedule, j.row)).* FROM unnest(schedules) AS j(row) ORDER BY (j.row ->> 'name') COLLATE "C"
        ON CONFLICT DO NOTHING RETURNING name
    )
    INSERT INTO howdah.schedule_creator (name, principal)
    SELECT s.name, j.row ->> 'creator' FROM stored s JOIN unnest(schedules) AS j(row) ON j.row ->> 'name' = s.name
    WHERE j.row ->> 'creator' IS NOT NULL;
    PERFORM howdah.notify('s');
END $$;
