-- Types that have settings of their own.
SELECT id, name, max_attempts, retry_policy, history FROM howdah.task_type
WHERE max_attempts IS NOT NULL OR retry_policy IS NOT NULL OR history IS NOT NULL
