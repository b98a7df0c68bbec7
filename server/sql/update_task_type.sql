-- $1 name $2 max_attempts $3 retry_policy $4 history $5 fallback; the version tells every broker to read settings again.
WITH bumped AS (UPDATE howdah.settings SET version = version + 1 RETURNING version)
INSERT INTO howdah.task_type (name, max_attempts, retry_policy, history, fallback)
SELECT $1::text, $2::smallint, $3::jsonb, $4::text, $5::integer FROM bumped
ON CONFLICT (name) DO UPDATE SET max_attempts = excluded.max_attempts, retry_policy = excluded.retry_policy,
                                 history = excluded.history, fallback = excluded.fallback
RETURNING id
