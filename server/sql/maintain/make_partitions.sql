-- Makes the partitions of history, of payloads, of tags, of the journal of bulk operations and of the audit from yesterday to $1 days
-- ahead, so that no ack waits for one.
SELECT count(*) FILTER (WHERE howdah.make_day_partition('history', 'finished', day::date))
     + count(*) FILTER (WHERE howdah.make_day_partition('payload', 'created', day::date))
     + count(*) FILTER (WHERE howdah.make_day_partition('job_tag', 'created', day::date))
     + count(*) FILTER (WHERE howdah.make_day_partition('bulk_change', 'changed', day::date))
     + count(*) FILTER (WHERE howdah.make_audit_partition(day::date)) AS made
FROM generate_series((now() AT TIME ZONE 'UTC')::date - 1, (now() AT TIME ZONE 'UTC')::date + $1::integer, interval '1 day') AS day
