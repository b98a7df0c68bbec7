-- Corrects the ids that a repeat is answered with, if keys replaced some of them by ids of other jobs.
UPDATE howdah.request SET ids = $2::bigint[] WHERE key = $1::text
