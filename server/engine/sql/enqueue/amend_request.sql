-- Replaces the ids that a repeat of the request returns, because other jobs hold the keys of some of its jobs. $1 key
-- $2 id[]
UPDATE howdah.request SET ids = $2::bigint[] WHERE key = $1::text
