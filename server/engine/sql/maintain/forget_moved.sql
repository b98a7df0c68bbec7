-- Deletes the recorded new ids of jobs that moved to or from another store, when history of that time is dropped. While a type
-- arrives, its rows in `arrived` are kept, because they keep its jobs from being stored twice. $1 days
WITH old AS (DELETE FROM howdah.moved WHERE at < now() - $1::integer * interval '1 day')
DELETE FROM howdah.arrived WHERE at < now() - $1::integer * interval '1 day' AND NOT EXISTS (SELECT FROM howdah.type_arrival)
