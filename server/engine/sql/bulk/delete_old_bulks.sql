-- Deletes bulk operations that ended more than $1 days ago, and the oldest ended ones if more than $2 are left. $1 days kept $2
-- ended ones at most
DELETE FROM howdah.bulk WHERE ended < now() - $1::integer * interval '1 day'
   OR id <= (SELECT id FROM howdah.bulk WHERE ended IS NOT NULL ORDER BY id DESC OFFSET $2::bigint LIMIT 1) AND ended IS NOT NULL
