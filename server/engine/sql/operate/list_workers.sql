-- Returns a page of the sessions of live brokers, as they last reported them. Leaves out the brokers in $3, whose sessions the
-- calling process knows from memory.
-- $1 broker after, and $2 number there $3 not of these brokers $4 only of this task type (null: of any) $5 at most
SELECT w.broker_id, b.name AS broker, w.number, w.summary::text AS summary,
       greatest(0, extract(epoch FROM now() - w.updated) * 1000)::bigint AS age_ms
FROM howdah.worker w JOIN howdah.broker b ON b.id = w.broker_id
WHERE (w.broker_id, w.number) > ($1::integer, $2::bigint) AND w.broker_id <> ALL ($3::integer[]) AND b.expires > now()
      AND ($4::text IS NULL OR w.task_types @> ARRAY[$4])
ORDER BY w.broker_id, w.number LIMIT $5::integer
