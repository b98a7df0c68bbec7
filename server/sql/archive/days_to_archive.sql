-- Days that are over and have jobs that are not archived. A day counts as over some minutes late: transactions that began
-- before midnight write to it until they end. $1 minutes $2 whether the current day is wanted too
SELECT d::text AS day FROM howdah.days_to_archive(
    CASE WHEN $2::boolean THEN (now() AT TIME ZONE 'UTC')::date + 1
         ELSE ((now() - $1::integer * interval '1 minute') AT TIME ZONE 'UTC')::date END) AS d
