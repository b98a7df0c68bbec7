-- The ids that a repeat must be told, where keys made some of them other jobs' ids.
UPDATE howdah.request SET ids = $2::bigint[] WHERE key = $1::text
