-- Returns the waiting jobs of a type that depend on the given jobs, directly or through other jobs, and meet the conditions. A bulk operation that
-- cancels all of these jobs cancels the dependents first: a job that is cancelled as a consequence of its parent's end is not
-- in the journal, so it could not be undone.
-- $1 id[] $2 type $3 last id $4 conditions (null: none)
WITH RECURSIVE below AS (
    SELECT w.id, w.fits
    FROM unnest($1::bigint[]) AS p(id)
    -- LATERAL with OFFSET 0 forces look-ups by index. A join may read both tables completely for each link of a chain.
    CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = p.id OFFSET 0) d
    CROSS JOIN LATERAL (
        SELECT w.id, howdah.meets($4::jsonb, w.created, w.attempt, w.options) AS fits FROM howdah.waiting w
        WHERE w.id = d.job_id AND (w.type_id = $2::integer) IS TRUE AND w.id <= $3::bigint OFFSET 0) w
    UNION
    SELECT w.id, w.fits
    FROM below
    CROSS JOIN LATERAL (SELECT d.job_id FROM howdah.dependency d WHERE d.after_id = below.id OFFSET 0) d
    CROSS JOIN LATERAL (
        SELECT w.id, howdah.meets($4, w.created, w.attempt, w.options) AS fits FROM howdah.waiting w
        WHERE w.id = d.job_id AND (w.type_id = $2) IS TRUE AND w.id <= $3 OFFSET 0) w
)
SELECT id FROM below WHERE fits AND id <> ALL ($1)
