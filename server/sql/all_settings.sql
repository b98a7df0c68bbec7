-- Types that have settings of their own.
SELECT id, name, max_attempts, retry_policy, history,
       (SELECT f.name FROM howdah.task_type f WHERE f.id = t.fallback) AS fallback
FROM howdah.task_type t
WHERE max_attempts IS NOT NULL OR retry_policy IS NOT NULL OR history IS NOT NULL OR fallback IS NOT NULL
