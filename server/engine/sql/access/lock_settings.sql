-- Locks the settings of the cluster until the transaction ends, so that changes of settings follow one another. A change of a task
-- type's settings updates this row, too.
SELECT FROM howdah.settings FOR NO KEY UPDATE
