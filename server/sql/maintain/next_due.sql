-- Returns when the next scheduled job, deadline, expiry and schedule are due that are not due yet: one look-up in an index
-- each. Overdue entries are either being processed, or locked, and then the sweep finds them.
SELECT (SELECT ceil(extract(epoch FROM run_at - now()) * 1000000)::bigint FROM howdah.scheduled
        WHERE run_at > now() ORDER BY run_at, id LIMIT 1) AS job_in_us,
       (SELECT ceil(extract(epoch FROM deadline - now()) * 1000000)::bigint FROM howdah.leased
        WHERE deadline > now() ORDER BY deadline LIMIT 1) AS deadline_in_us,
       (SELECT ceil(extract(epoch FROM expire_at - now()) * 1000000)::bigint FROM howdah.expiry
        WHERE expire_at > now() ORDER BY expire_at LIMIT 1) AS expiry_in_us,
       (SELECT ceil(extract(epoch FROM next_at - now()) * 1000000)::bigint FROM howdah.schedule
        WHERE next_at > now() ORDER BY next_at LIMIT 1) AS schedule_in_us
