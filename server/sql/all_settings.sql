-- Types that have settings of their own.
SELECT id, name, max_attempts, retry_policy, history, howdah.limits_of(t) AS limits FROM howdah.task_type t
WHERE max_attempts IS NOT NULL OR retry_policy IS NOT NULL OR history IS NOT NULL OR howdah.limits_of(t) <> '{}'
