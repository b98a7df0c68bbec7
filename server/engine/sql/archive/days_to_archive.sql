-- Returns days that are over and have jobs that are not archived. A day counts as over $1 minutes after midnight, because
-- transactions that began before midnight still write to it. $1 minutes $2 whether to include the current day
SELECT d::text AS day FROM howdah.days_to_archive(
    CASE WHEN $2::boolean THEN (now() AT TIME ZONE 'UTC')::date + 1
         ELSE ((now() - $1::integer * interval '1 minute') AT TIME ZONE 'UTC')::date END) AS d
