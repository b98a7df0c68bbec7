-- Deletes statistics and samples of backlogs that are too old. The age limit of each period is a constant in the statement, so
-- that the planner knows that few rows are older, and uses the index. A lock lets only one broker at a time do this.
WITH guard AS MATERIALIZED (SELECT FROM howdah.backlog_sample FOR UPDATE SKIP LOCKED),
minutes AS (
    DELETE FROM howdah.statistics WHERE minutes = 1 AND starts < now() - interval '2 hours 1 minute' AND (SELECT count(*) FROM guard) > 0
),
hours AS (
    DELETE FROM howdah.statistics WHERE minutes = 60 AND starts < now() - interval '90 days' AND (SELECT count(*) FROM guard) > 0
),
days AS (
    DELETE FROM howdah.statistics WHERE minutes = 1440 AND starts < now() - interval '91 days' AND (SELECT count(*) FROM guard) > 0
),
backlog_minutes AS (
    DELETE FROM howdah.backlog WHERE minutes = 1 AND starts < now() - interval '2 hours 1 minute' AND (SELECT count(*) FROM guard) > 0
),
backlog_hours AS (
    DELETE FROM howdah.backlog WHERE minutes = 60 AND starts < now() - interval '90 days' AND (SELECT count(*) FROM guard) > 0
),
backlog_days AS (
    DELETE FROM howdah.backlog WHERE minutes = 1440 AND starts < now() - interval '91 days' AND (SELECT count(*) FROM guard) > 0
)
SELECT count(*) AS locked FROM guard
