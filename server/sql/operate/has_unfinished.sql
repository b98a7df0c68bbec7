-- Returns whether this store has a live job: one look-up in each table of live jobs.
SELECT EXISTS (SELECT FROM howdah.ready) OR EXISTS (SELECT FROM howdah.leased) OR EXISTS (SELECT FROM howdah.scheduled)
    OR EXISTS (SELECT FROM howdah.waiting)
