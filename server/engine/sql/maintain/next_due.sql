-- Returns the next future times at which a scheduled job, a deadline, an expiry and a schedule are due, by one index look-up
-- each. Overdue entries are left out: they are being processed, or are locked and found by the sweep.
SELECT (SELECT ceil(extract(epoch FROM run_at - now()) * 1000000)::bigint FROM howdah.scheduled
        WHERE run_at > now() ORDER BY run_at, id LIMIT 1) AS job_in_us,
       (SELECT ceil(extract(epoch FROM deadline - now()) * 1000000)::bigint FROM howdah.leased
        WHERE deadline > now() ORDER BY deadline LIMIT 1) AS deadline_in_us,
       (SELECT ceil(extract(epoch FROM expire_at - now()) * 1000000)::bigint FROM howdah.expiry
        WHERE expire_at > now() ORDER BY expire_at LIMIT 1) AS expiry_in_us,
       (SELECT ceil(extract(epoch FROM next_at - now()) * 1000000)::bigint FROM howdah.schedule
        WHERE next_at > now() ORDER BY next_at LIMIT 1) AS schedule_in_us
