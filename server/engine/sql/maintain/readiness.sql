-- Returns whether a broker can store, claim and settle jobs. It names each table, so that the statement fails if one is
-- missing.
-- $1 the broker's id
SELECT EXISTS (SELECT FROM howdah.broker WHERE id = $1::integer AND expires > now()) AS has_lease,
       bool_and(howdah.has_table(parent || day)) AS has_days,
       bool_and(howdah.has_table(parent || day) OR howdah.has_table(parent || '_default')) AS has_partitions,
       bool_and(howdah.has_table(parent || '_default')) AS has_defaults
FROM (VALUES ('history'), ('payload'), ('job_tag')) p (parent),
     to_char(now() AT TIME ZONE 'UTC', '_YYYYMMDD') AS day
WHERE NOT EXISTS (SELECT FROM howdah.ready, howdah.leased, howdah.scheduled, howdah.waiting, howdah.dead, howdah.history,
                              howdah.payload, howdah.job_tag, howdah.request, howdah.job_key, howdah.task_type, howdah.settings,
                              howdah.dependency, howdah.expiry, howdah.limit_state, howdah.brake, howdah.key_version,
                              howdah.fair_share WHERE false)
