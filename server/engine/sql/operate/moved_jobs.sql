-- Returns which of the given jobs have moved to another store, with their new ids. $1 id[]
SELECT old_id, new_id FROM howdah.moved WHERE old_id = ANY ($1::bigint[])
