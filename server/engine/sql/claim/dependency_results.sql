-- Returns the states and results of the dependencies of claimed jobs, in the order of the parameters. A result is left out
-- (truncated) if it is too large itself, or if the results of its job or of all jobs would exceed their bytes with it.
-- octet_length reads no value that is stored out of line, so results that are left out cost no I/O.
-- $1 number of the job, from 1, for each dependency $2 id[] $3 bytes of results of each job $4 bytes of all results
-- $5 bytes of a result
WITH asked AS MATERIALIZED (
    SELECT a.job, a.id, a.nth FROM unnest($1::integer[], $2::bigint[]) WITH ORDINALITY AS a(job, id, nth)
),
known AS MATERIALIZED (SELECT r.id, r.state, r.result FROM howdah.results_of($2::bigint[]) r),
sized AS (
    SELECT a.job, a.nth, k.state, k.result, coalesce(octet_length(k.result), 0)::bigint AS bytes
    FROM asked a LEFT JOIN known k ON k.id = a.id
),
in_job AS (
    SELECT s.*, s.bytes <= $5::bigint
                AND sum(s.bytes) FILTER (WHERE s.bytes <= $5) OVER (PARTITION BY s.job ORDER BY s.nth) <= ($3::bigint[])[s.job] AS fits
    FROM sized s
),
in_all AS (
    SELECT j.*, j.bytes = 0 OR j.fits AND sum(j.bytes) FILTER (WHERE j.fits) OVER (ORDER BY j.nth) <= $4::bigint AS is_included
    FROM in_job j
)
SELECT state, CASE WHEN is_included THEN result END AS result, NOT is_included AS truncated FROM in_all ORDER BY nth
