-- What tells this store from the others of a fleet, and whether it may still get another number: it has given out no id.
SELECT howdah.store_number() AS number, i.id::text AS identity, s.is_called AS has_ids
FROM howdah.identity i CROSS JOIN howdah.job_id s
