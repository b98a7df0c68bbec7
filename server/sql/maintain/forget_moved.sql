-- Forgets which new ids jobs have that moved to another store, or came from one, once history of that time is dropped.
-- While a type comes, what has arrived is what keeps its jobs from being stored twice. $1 days
WITH old AS (DELETE FROM howdah.moved WHERE at < now() - $1::integer * interval '1 day')
DELETE FROM howdah.arrived WHERE at < now() - $1::integer * interval '1 day' AND NOT EXISTS (SELECT FROM howdah.type_arrival)
