-- Returns types that have settings, and types whose ranks must still be changed to a new step.
SELECT id, name,
       max_attempts,
       retry_policy,
       history,
       priority_step_us,
       timeout_ms,
       paused,
       max_payload_bytes,
       max_backlog,
       history_days,
       dead_days,
       howdah.limits_of(t) AS limits,
       (SELECT f.name FROM howdah.task_type f WHERE f.id = t.fallback) AS fallback,
       step_changed IS NOT NULL AS step_changed
FROM howdah.task_type t
WHERE step_changed IS NOT NULL OR howdah.limits_of(t) <> '{}' OR num_nonnulls(
       max_attempts,
       retry_policy,
       history,
       priority_step_us,
       timeout_ms,
       paused,
       max_payload_bytes,
       max_backlog,
       history_days,
       dead_days,
       fallback) > 0
