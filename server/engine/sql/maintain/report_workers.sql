-- Writes the changed sessions of a broker, and deletes the sessions that have ended. The broker's row is locked first, as in
-- the statement that deletes it with these rows, to avoid a deadlock. If the broker has no row, nothing is written: it will
-- register again, and write all of its sessions. The other columns are derived from the summary, so that they cannot differ
-- from it.
-- $1 broker $2 number[] $3 summary[] $4 number[] of ended sessions
WITH broker AS MATERIALIZED (
    SELECT id FROM howdah.broker WHERE id = $1::integer FOR KEY SHARE
),
ended AS (
    DELETE FROM howdah.worker w USING broker b WHERE w.broker_id = b.id AND w.number = ANY ($4::bigint[])
)
INSERT INTO howdah.worker AS w (broker_id, number, updated, task_types, job_ids, summary)
SELECT b.id, u.number, now(),
       ARRAY(SELECT t ->> 'task_type' FROM jsonb_array_elements(u.summary -> 'windows') t ORDER BY 1),
       ARRAY(SELECT j::bigint FROM jsonb_array_elements(u.summary -> 'windows') t, jsonb_array_elements_text(t -> 'oldest') j),
       u.summary
FROM broker b, unnest($2::bigint[], $3::text[]::jsonb[]) AS u(number, summary)
ON CONFLICT (broker_id, number) DO UPDATE SET
    updated = excluded.updated, task_types = excluded.task_types, job_ids = excluded.job_ids, summary = excluded.summary
RETURNING w.number
