-- Somebody waits for the end of these. $1 id[]
SELECT unnest(howdah.mark_waited($1::bigint[])) AS id
