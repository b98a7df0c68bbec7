-- Corrects the ids with which a repeated request is answered, if keys replaced some of them by ids of other jobs. $1 key
-- $2 id[]
UPDATE howdah.request SET ids = $2::bigint[] WHERE key = $1::text
