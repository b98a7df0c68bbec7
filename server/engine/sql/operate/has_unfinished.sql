-- Returns whether this store has a ready, leased, scheduled or waiting job, by one look-up in each of these tables.
SELECT EXISTS (SELECT FROM howdah.ready) OR EXISTS (SELECT FROM howdah.leased) OR EXISTS (SELECT FROM howdah.scheduled)
    OR EXISTS (SELECT FROM howdah.waiting)
