-- Returns the new ids of jobs of this list that have moved to another store. $1 id[]
SELECT old_id, new_id FROM howdah.moved WHERE old_id = ANY ($1::bigint[])
