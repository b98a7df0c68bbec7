-- Restores archived jobs as new jobs (docs/operate/archive.md).

-- Enqueues a copy of each of these finished jobs, all or none. A copy has the options that its job was enqueued with, as far as
-- history keeps them. It does not get the old job's start time, expiry, dependencies, progress and errors, and its timeout is
-- the type's. Each copy has a request key made of the old id, so that a call can be repeated. One call stores all copies,
-- because a call for each costs about five times as much.
CREATE OR REPLACE FUNCTION howdah.restore_jobs(old_ids bigint[], types text[], payloads bytea[], headers text[], options text[],
                                               priorities integer[], attempts integer[], keys text[])
RETURNS TABLE (old_id bigint, id bigint, outcome text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s howdah.settings;
    unfinished_ids bigint[];
    known howdah.task_type[];
    a record;
    r record;
    made bigint[];
    outcomes text[];
BEGIN
    SELECT * INTO STRICT s FROM howdah.settings;
    -- Skip jobs that are unfinished or dead again, because a bulk operation was undone or the job that they waited for was
    -- retried. Scalar subqueries force look-ups by index: for a list of ids, the planner may scan a whole table.
    unfinished_ids := ARRAY(SELECT o.id FROM unnest(old_ids) AS o(id)
                  WHERE coalesce((SELECT 1 FROM howdah.ready j WHERE j.id = o.id), (SELECT 1 FROM howdah.leased j WHERE j.id = o.id),
                                 (SELECT 1 FROM howdah.scheduled j WHERE j.id = o.id), (SELECT 1 FROM howdah.waiting j WHERE j.id = o.id),
                                 (SELECT 1 FROM howdah.dead j WHERE j.id = o.id)) IS NOT NULL);
    FOR r IN SELECT DISTINCT o.name COLLATE "C" AS name FROM unnest(old_ids, types) AS o(id, name) WHERE o.id <> ALL (unfinished_ids)
             ORDER BY 1 LOOP
        known := known || howdah.type_named(r.name, 'task_type');
    END LOOP;
    PERFORM howdah.check_payload('payload', o.payload, t, s)
    FROM unnest(old_ids, types, payloads) AS o(id, name, payload) JOIN unnest(known) t ON t.name = o.name
    WHERE o.id <> ALL (unfinished_ids) AND (o.payload IS NULL OR octet_length(o.payload) > least(t.max_payload_bytes, s.payload_bytes)) LIMIT 1;

    -- Compute the arguments of enqueue_jobs. If a job is given several times, because it ended several times, its first entry
    -- counts.
    SELECT array_agg(c.no ORDER BY c.no) AS nos, array_agg(c.n::integer ORDER BY c.no) AS positions, array_agg(c.id ORDER BY c.no) AS ids,
           array_agg(c.type_id ORDER BY c.no) AS type_ids, array_agg(c.priority * c.step ORDER BY c.no) AS bases,
           array_agg(c.priority ORDER BY c.no) AS priorities, array_agg(c.attempts ORDER BY c.no) AS attempts,
           array_agg(c.timeout_ms ORDER BY c.no) AS timeouts, array_agg(c.key ORDER BY c.no) AS keys,
           array_agg(coalesce(c.headers::jsonb, '{}') || jsonb_build_object('howdah-restored-from', c.id::text) ORDER BY c.no) AS headers,
           array_agg(howdah.with_step(nullif(c.kept || CASE WHEN c.is_large THEN jsonb_build_object('payload_bytes', octet_length(c.payload))
                                                            ELSE '{}' END, '{}'), c.priority, c.step) ORDER BY c.no) AS options,
           array_agg(CASE WHEN c.is_large THEN '' ELSE c.payload END ORDER BY c.no) AS payloads,
           array_agg(NULL::bigint) AS starts,
           array_agg(E'\x1frestore\x1f' || c.id ORDER BY c.no) AS request_keys,
           array_agg(sha256(convert_to(c.id::text, 'UTF8')) ORDER BY c.no) AS hashes,
           array_agg(c.no ORDER BY c.no) FILTER (WHERE c.is_large) AS data_nos,
           array_agg(c.payload ORDER BY c.no) FILTER (WHERE c.is_large) AS data
    INTO a FROM (
        SELECT o.*, row_number() OVER (ORDER BY o.n)::integer AS no, t.id AS type_id, t.timeout_ms,
               coalesce(t.priority_step_us, howdah.default_step()) AS step, octet_length(o.payload) > 1024 AS is_large,
               (SELECT coalesce(jsonb_object_agg(e.key, e.value), '{}') FROM jsonb_each(o.options::jsonb) e
                WHERE e.key = ANY ('{retry_policy,tags,fallback,history,{{plain}},next_stages,stage_payload,on_holder_failure}')) AS kept
        FROM (
            SELECT DISTINCT ON (u.id) u.*
            FROM unnest(old_ids, types, payloads, headers, options, priorities::smallint[], attempts::smallint[], keys) WITH ORDINALITY
                AS u(id, name, payload, headers, options, priority, attempts, key, n)
            WHERE u.id <> ALL (unfinished_ids) ORDER BY u.id, u.n
        ) o JOIN unnest(known) t ON t.name = o.name
    ) c;
    IF EXISTS (SELECT FROM unnest(a.options) o CROSS JOIN LATERAL jsonb_array_elements(coalesce(o -> 'next_stages', '[]') || coalesce(o -> 'fallback', '[]')) e(type_id)
               WHERE NOT EXISTS (SELECT FROM howdah.task_type k WHERE k.id = (e.type_id #>> '{}')::integer)) THEN
        PERFORM howdah.refuse('next_stages', 'or fallback names a task type that was deleted');
    END IF;

    IF a.nos IS NOT NULL THEN
        FOR r IN SELECT * FROM howdah.enqueue_jobs(
            a.nos, a.type_ids, a.bases, a.priorities, a.attempts, a.timeouts, a.keys, a.headers, a.options, a.payloads, a.starts, a.starts,
            a.nos, a.request_keys, a.hashes, a.data_nos, a.data)
        LOOP
            IF r.kind IS NULL THEN
                made[r.ordinal] := r.id;
                outcomes[r.ordinal] := r.outcome;
            ELSE
                PERFORM howdah.send_wakeup(ROW(r.kind, r.type_id, r.rank, r.jobs, r.in_us)::howdah.wakeup);
            END IF;
        END LOOP;
        -- Delete the request keys of jobs that were not restored, so that the next call tries them again.
        DELETE FROM howdah.request WHERE key = ANY (ARRAY(SELECT m.request_key FROM unnest(a.request_keys, outcomes) AS m(request_key, outcome)
                                                          WHERE m.outcome = 'kept'));
    END IF;
    RETURN QUERY
    SELECT o.id,
           CASE WHEN m.outcome = 'repeated' THEN coalesce((SELECT q.ids[1] FROM howdah.request q WHERE q.key = m.request_key), o.id)
                ELSE coalesce(m.id, o.id) END,
           CASE WHEN m.outcome = 'new' AND m.position <> o.n THEN 'repeated' ELSE coalesce(m.outcome, 'unfinished') END
    FROM unnest(old_ids) WITH ORDINALITY AS o(id, n)
    LEFT JOIN unnest(a.ids, a.positions, a.request_keys, made, outcomes) AS m(old_id, position, request_key, id, outcome) ON m.old_id = o.id
    ORDER BY o.n;
END $$;
