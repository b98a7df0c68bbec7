-- Schedules: created, changed and deleted by applications. Text in double braces is generated from the options of a job
-- (server/engine/src/store/option_sql.rs).

-- Drops the functions schedule and schedule_any of other releases, for the reason in enqueue.sql.
DO $$
DECLARE
    other regprocedure;
BEGIN
    FOR other IN SELECT p.oid FROM pg_proc p
                 WHERE p.pronamespace = to_regnamespace(rtrim('howdah.', '.')) AND p.proname IN ('schedule', 'schedule_any')
                   AND p.proargnames <> ARRAY['name', 'task_type', 'payload', {{schedule_argument_names}}, {{template_argument_names}}]
                 ORDER BY p.proname LOOP
        EXECUTE format('DROP FUNCTION %s', other);
    END LOOP;
END $$;

-- Checks the parts of a cron expression that need no calendar: its length, characters, fields, names and numbers. The broker
-- that plans the schedule checks the rest, such as a day that never comes.
CREATE OR REPLACE FUNCTION howdah.check_cron(field text, expression text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    help CONSTANT text := 'write five fields, minute hour day month weekday, such as 30 2 * * MON-FRI';
    nicknames CONSTANT text[] := '{@yearly,@annually,@monthly,@weekly,@daily,@midnight,@hourly}';
    -- The numbers and the words of second, minute, hour, day, month and weekday.
    low CONSTANT integer[] := '{0,0,0,1,1,0}';
    high CONSTANT integer[] := '{59,59,23,31,12,7}';
    words CONSTANT text[] := ARRAY['', '', '', 'l?w?', 'jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec',
                                   '(sun|mon|tue|wed|thu|fri|sat)?l?'];
    parts text[] := string_to_array(regexp_replace(btrim(expression), ' +', ' ', 'g'), ' ');
    bad text;
BEGIN
    IF octet_length(expression) > 200 THEN
        PERFORM howdah.refuse(field, format('has %s bytes; at most 200 are allowed', octet_length(expression)));
    ELSIF expression ~ '[^A-Za-z0-9 *,/?#+@-]' THEN
        PERFORM howdah.refuse(field, 'has a character that cron does not know; ' || help);
    ELSIF lower(parts[1]) = '@reboot' THEN
        PERFORM howdah.refuse(field, 'is @reboot, which names no time; enqueue the job where the program starts instead');
    ELSIF parts[1] ~ '^@' THEN
        IF cardinality(parts) > 1 OR lower(parts[1]) <> ALL (nicknames) THEN
            PERFORM howdah.refuse(field, format('is %s, which cron does not know; write one of %s, or five fields, or set every instead of cron',
                                                howdah.quoted(expression), array_to_string(nicknames, ', ')));
        END IF;
        RETURN;
    ELSIF cardinality(parts) NOT IN (5, 6) THEN
        PERFORM howdah.refuse(field, format('is %s, which cron does not understand (%s fields); %s', howdah.quoted(expression), cardinality(parts), help));
    END IF;
    parts := CASE cardinality(parts) WHEN 5 THEN '{0}' || parts ELSE parts END;
    SELECT p.part INTO bad FROM unnest(parts) WITH ORDINALITY AS p(part, n)
    WHERE ',' || p.part || ',' LIKE '%,,%'
       -- Numbers after / and # are steps and counts.
       OR EXISTS (SELECT FROM regexp_matches(regexp_replace(p.part, '[/#][0-9]+', '', 'g'), '[0-9]+', 'g') m
                  WHERE m[1]::numeric NOT BETWEEN low[p.n] AND high[p.n])
       OR EXISTS (SELECT FROM regexp_matches(lower(p.part), '[a-z]+', 'g') m WHERE m[1] !~ ('^(' || words[p.n] || ')$'))
    LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM howdah.refuse(field, format('is %s, which cron does not understand (%s); %s', howdah.quoted(expression), bad, help));
    END IF;
END $$;

-- Checks the name of a time zone, and returns it. Brokers know the IANA database; Postgres also knows other names, which the
-- broker that plans the schedule refuses.
CREATE OR REPLACE FUNCTION howdah.zone_of(field text, zone text) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF zone !~ '^[A-Za-z0-9_+/-]{1,100}$' OR zone ~* '^(localtime|posixrules|factory|posix/.*|right/.*)$' THEN
        PERFORM howdah.refuse(field, 'is not the name of a time zone; write one of the IANA database, such as Europe/Berlin or UTC');
    END IF;
    BEGIN
        PERFORM now() AT TIME ZONE zone;
    EXCEPTION WHEN invalid_parameter_value THEN
        PERFORM howdah.refuse(field, format('is %s, which is not in the IANA database; write for example Europe/Berlin or UTC', howdah.quoted(zone)));
    END;
    RETURN zone;
END $$;

-- Checks a start or end time, and returns it.
CREATE OR REPLACE FUNCTION howdah.moment_of(field text, value timestamptz) RETURNS timestamptz LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF value NOT BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59+00' THEN
        PERFORM howdah.refuse(field, format('is %s; years 1970 to 9999 are allowed', value));
    END IF;
    RETURN value;
END $$;

-- Checks the plan and the policies of a schedule, and returns them as a row, with the state of a new schedule that a broker has
-- to plan (tables/schedules.sql).
CREATE OR REPLACE FUNCTION howdah.checked_schedule(
    name text, every interval, cron text, time_zone text, drift text, overlap text, missed text, missed_limit integer,
    start_time timestamptz, end_time timestamptz, jitter interval, paused boolean)
RETURNS howdah.schedule LANGUAGE plpgsql AS $$
DECLARE
    d howdah.schedule;
BEGIN
    IF name IS NULL OR name !~ '^[A-Za-z0-9._:/-]{1,200}$' THEN
        PERFORM howdah.refuse('name', format('is %s; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed', howdah.quoted(name)));
    ELSIF num_nonnulls(every, cron) = 0 THEN
        PERFORM howdah.refuse('every', 'is not set; set every or cron');
    ELSIF num_nonnulls(every, cron) = 2 THEN
        PERFORM howdah.refuse('every', 'is set together with cron; set one of them');
    ELSIF cron IS NULL AND time_zone IS NOT NULL THEN
        PERFORM howdah.refuse('time_zone', 'is set without cron; set cron too');
    ELSIF cron IS NOT NULL THEN
        PERFORM howdah.check_cron('cron', cron);
    END IF;
    d.name := name;
    d.period_ms := howdah.ms_of('every', every::text, '1 s', '3650 days');
    d.cron := btrim(cron);
    d.time_zone := CASE WHEN cron IS NOT NULL THEN howdah.zone_of('time_zone', coalesce(time_zone, 'UTC')) END;
    d.drift := howdah.word_of('drift', coalesce(drift, 'plan'), 'plan', 'end');
    d.overlap := howdah.word_of('overlap', coalesce(overlap, 'allow'), 'allow', 'skip', 'one-waiting');
    d.missed := howdah.word_of('missed', coalesce(missed, 'one'), 'skip', 'one', 'all');
    IF d.drift = 'end' AND cron IS NOT NULL THEN
        PERFORM howdah.refuse('drift', 'is end, which is for periods only; set plan, or every instead of cron');
    ELSIF d.missed <> 'all' AND missed_limit IS NOT NULL THEN
        PERFORM howdah.refuse('missed_limit', format('is %s, but missed is not all; set missed to that, or leave missed_limit out', missed_limit));
    END IF;
    d.missed_limit := CASE d.missed WHEN 'skip' THEN 0 WHEN 'one' THEN 1
                                    ELSE howdah.number_of('missed_limit', coalesce(missed_limit, 100)::text, 1, 1000) END;
    d.start_time := howdah.moment_of('start_time', start_time);
    d.end_time := howdah.moment_of('end_time', end_time);
    IF d.end_time <= d.start_time THEN
        PERFORM howdah.refuse('end_time', 'is not after start_time; leave it out for no end');
    ELSIF d.end_time <= now() THEN
        PERFORM howdah.refuse('end_time', 'is not after the next planned time, so the schedule would never fire; set a later time');
    END IF;
    d.jitter_ms := coalesce(howdah.ms_of('jitter', jitter::text, '0 s', least(interval '24 h', every)), 0);
    d.created := now();
    d.updated := now();
    d.paused := coalesce(paused, false);
    d.anchor := now();
    d.next_at := now();
    d.watching := false;
    d.job_ids := '{}';
    d.fired := 0;
    d.skipped := 0;
    RETURN d;
END $$;

-- Converts an interval to the JSON of the protocol, such as 1.5s.
CREATE OR REPLACE FUNCTION howdah.wire_duration(value text) RETURNS text LANGUAGE sql STABLE STRICT AS $$
    SELECT trim_scale(extract(epoch FROM value::interval)) || 's'
$$;

-- Returns the template of a schedule, a howdah.v1.NewJob in JSON, for the checked options of a job.
CREATE OR REPLACE FUNCTION howdah.template_of(j jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('task_type', j ->> 'task_type',
        {{template}},
        'retry_policy', CASE WHEN j ? 'retry_policy' THEN jsonb_build_object(
            {{retry_template}}) END))::text
$$;

-- Creates a schedule. Returns false if another one has the name.
CREATE OR REPLACE FUNCTION howdah.create_schedule(d howdah.schedule) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    creator text := CASE WHEN NOT pg_has_role(session_user, (
        SELECT c.relowner FROM pg_class c WHERE c.oid = 'howdah.grants'::regclass), 'MEMBER') THEN 'sql:' || session_user END;
BEGIN
    IF howdah.is_closed() THEN
        PERFORM howdah.refuse_closed();
    ELSIF (SELECT count(*) FROM howdah.schedule) >= 10000 THEN
        RAISE EXCEPTION 'the maximum of 10000 schedules is reached; delete unneeded ones' USING ERRCODE = 'HW004';
    ELSIF (SELECT count(*) FROM howdah.schedule_creator c WHERE c.principal = creator) >= 2500 THEN
        RAISE EXCEPTION '% has created 2500 schedules, which is the most for one principal; delete those that are not needed',
            to_json(creator) USING ERRCODE = 'HW004';
    END IF;
    INSERT INTO howdah.schedule VALUES (d.*) ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO howdah.schedule_creator (name, principal) SELECT d.name, creator WHERE creator IS NOT NULL;
    RETURN true;
END $$;

-- Replaces the definition of a schedule, which the caller has locked, like Schedule::redefine in
-- server/core/src/job/schedule. An unchanged plan keeps its planned times; a changed one is planned by a broker. A schedule
-- that had ended goes on at the times of its period. Returns false if nothing differs.
CREATE OR REPLACE FUNCTION howdah.redefine_schedule(old howdah.schedule, d howdah.schedule) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    defined CONSTANT text[] := '{template,payload,period_ms,cron,time_zone,drift,overlap,missed,missed_limit,start_time,end_time,jitter_ms}';
    planned CONSTANT text[] := '{period_ms,cron,time_zone,drift,start_time}';
    changed text[];
    waits boolean := old.watching AND old.drift = 'end' AND d.drift = 'end' AND old.start_time IS NOT DISTINCT FROM d.start_time;
    plans boolean;
    next_time timestamptz;
BEGIN
    SELECT array_agg(n.key) INTO changed
    FROM jsonb_each(to_jsonb(d)) n JOIN jsonb_each(to_jsonb(old)) o USING (key)
    WHERE n.key = ANY (defined) AND n.value IS DISTINCT FROM o.value;
    IF changed IS NULL THEN
        RETURN false;
    END IF;
    plans := NOT waits AND (changed && planned OR old.next_planned IS NULL);
    IF plans AND NOT changed && planned AND old.next_at IS NULL AND d.period_ms IS NOT NULL THEN
        next_time := old.anchor + (greatest(floor(extract(epoch FROM now() - old.anchor) * 1000 / d.period_ms), -1) + 1)
                             * d.period_ms * interval '1 ms';
        IF next_time >= d.end_time THEN
            PERFORM howdah.refuse('end_time', 'is not after the next planned time, so the schedule would never fire; set a later time');
        END IF;
        plans := false;
    END IF;
    UPDATE howdah.schedule s SET
        template = d.template, payload = d.payload, task_type = d.task_type, period_ms = d.period_ms, cron = d.cron,
        time_zone = d.time_zone, drift = d.drift, overlap = d.overlap, missed = d.missed, missed_limit = d.missed_limit,
        start_time = d.start_time, end_time = d.end_time, jitter_ms = d.jitter_ms, updated = now(), last_error = NULL,
        -- The start of the current period: the last planned time, or the end of the last job.
        anchor = CASE WHEN NOT plans OR old.next_planned IS NULL AND old.next_at IS NOT NULL THEN old.anchor
                      WHEN old.drift = 'end' AND old.next_planned IS NOT NULL THEN old.next_planned - old.period_ms * interval '1 ms'
                      ELSE coalesce(old.last_planned, now()) END,
        next_planned = CASE WHEN NOT plans THEN coalesce(next_time, old.next_planned) END,
        -- A broker looks at the schedule at once, to plan it or to apply a changed jitter.
        next_at = CASE WHEN plans OR old.next_at IS NOT NULL OR next_time IS NOT NULL AND NOT old.paused THEN now() END,
        held = CASE WHEN d.overlap = 'one-waiting' THEN old.held END,
        watching = waits OR d.overlap = 'one-waiting' AND old.held IS NOT NULL,
        skipped = old.skipped + CASE WHEN d.overlap <> 'one-waiting' AND old.held IS NOT NULL THEN 1 ELSE 0 END
    WHERE s.name = old.name;
    RETURN true;
END $$;

-- Creates a schedule, or changes the one of this name. Returns false if it has this definition already.
CREATE OR REPLACE FUNCTION howdah.define_schedule(d howdah.schedule) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    old howdah.schedule;
    before jsonb;
BEGIN
    FOR try IN 1..5 LOOP
        SELECT * INTO old FROM howdah.schedule s WHERE s.name = d.name FOR UPDATE;
        IF FOUND THEN
            before := howdah.audited_settings('schedule', d.name);
            IF howdah.has_grants() AND NOT howdah.may('enqueue', old.task_type) THEN
                PERFORM howdah.refuse('name', format('is %s, and another schedule has this name; use another name', howdah.quoted(d.name)));
            ELSIF NOT howdah.redefine_schedule(old, d) THEN
                RETURN false;
            END IF;
        ELSIF NOT howdah.create_schedule(d) THEN
            -- Another transaction has just created the schedule.
            CONTINUE;
        END IF;
        PERFORM howdah.record_by_name('howdah.schedule', ARRAY[d.task_type], ARRAY[d.name],
                                      CASE WHEN before IS NULL THEN '{}'
                                           ELSE howdah.changed_settings(before, howdah.audited_settings('schedule', d.name)) END);
        PERFORM howdah.notify('s');
        RETURN true;
    END LOOP;
    RAISE EXCEPTION 'other calls create and delete schedule % at the same time; try again', to_json(d.name) USING ERRCODE = '40001';
END $$;

-- Creates a schedule, or changes the one of this name. The broker that is notified plans it.
CREATE OR REPLACE FUNCTION howdah.schedule_any(name text, task_type text, payload bytea, {{schedule_arguments}}, {{template_arguments}})
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' AS $$
DECLARE
    d howdah.schedule := howdah.checked_schedule(name, every, cron, time_zone, drift, overlap, missed, missed_limit,
                                                 start_time, end_time, jitter, paused);
    own CONSTANT text[] := '{howdah-schedule,howdah-planned-time}';
    checked howdah.checked_job;
    unknown record;
    j jsonb;
    s howdah.settings;
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    headers := howdah.headers_of('headers', headers, s);
    IF headers ?| own THEN
        PERFORM howdah.refuse('headers', format('have "%s", which the broker sets; leave it out', (SELECT n FROM unnest(own) n WHERE headers ? n LIMIT 1)));
    END IF;
    -- The broker adds two headers to each job.
    PERFORM howdah.headers_of('headers', coalesce(headers, '{}') || jsonb_build_object(own[1], name, own[2], '9999-12-31T23:59:59.999999Z'), s);
    j := jsonb_strip_nulls(jsonb_build_object('task_type', task_type, {{template_pairs}}));
    checked := howdah.check_job(j, payload, '', s);
    IF howdah.has_grants() THEN
        SELECT * INTO unknown FROM howdah.unknown_after(ARRAY[checked]);
        IF FOUND THEN
            RAISE EXCEPTION 'after names job %, which does not exist, or whose history has been dropped', unknown.id
                USING ERRCODE = 'HW001', COLUMN = 'after';
        END IF;
    END IF;
    d.template := howdah.template_of(j);
    d.payload := payload;
    d.task_type := task_type;
    RETURN howdah.define_schedule(d);
END $$;

-- Creates a schedule, or changes the one of this name; overloaded for payloads of bytes, text and JSON, like enqueue. The
-- transaction of the caller decides: after ROLLBACK, the schedule is as before.
CREATE OR REPLACE FUNCTION howdah.schedule(name text, task_type text, payload bytea DEFAULT '', {{schedule_arguments}}, {{template_arguments}})
RETURNS boolean LANGUAGE sql
    RETURN howdah.schedule_any(name, task_type, payload, {{schedule_passed}}, {{template_passed}});

CREATE OR REPLACE FUNCTION howdah.schedule(name text, task_type text, payload text, {{schedule_arguments}}, {{template_arguments}})
RETURNS boolean LANGUAGE sql
    RETURN howdah.schedule_any(name, task_type, convert_to(payload, 'UTF8'), {{schedule_passed}}, {{template_passed}});

CREATE OR REPLACE FUNCTION howdah.schedule(name text, task_type text, payload jsonb, {{schedule_arguments}}, {{template_arguments}})
RETURNS boolean LANGUAGE sql
    RETURN howdah.schedule_any(name, task_type, convert_to(payload::text, 'UTF8'), {{schedule_passed}}, {{template_passed}});

-- Deletes a schedule. Jobs that it has enqueued stay. Returns false if this session may delete no schedule of this name.
CREATE OR REPLACE FUNCTION howdah.unschedule(name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_type text;
BEGIN
    PERFORM howdah.check_grant('enqueue', NULL);
    DELETE FROM howdah.schedule s WHERE s.name = unschedule.name AND howdah.may('enqueue', s.task_type) RETURNING s.task_type INTO of_type;
    IF of_type IS NULL THEN
        RETURN false;
    END IF;
    PERFORM howdah.record_by_name('howdah.unschedule', ARRAY[of_type], ARRAY[name]);
    RETURN true;
END $$;
