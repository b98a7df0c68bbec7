-- Returns the number and the identity of this store, and whether it has allotted an id: until then, it may get another number.
SELECT howdah.store_number() AS number, i.id::text AS identity, s.is_called AS has_ids
FROM howdah.identity i CROSS JOIN howdah.job_id s
