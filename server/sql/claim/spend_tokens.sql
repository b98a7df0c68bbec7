-- Spends rate limit tokens of types whose jobs were claimed. $1 type_id[] $2 jobs[]
UPDATE howdah.limit_state g SET tokens = greatest(tokens - u.jobs, 0)
FROM unnest($1::integer[], $2::integer[]) AS u(type_id, jobs)
WHERE g.type_id = u.type_id AND g.limit_key = '' AND g.tokens IS NOT NULL
