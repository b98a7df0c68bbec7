-- Locks the settings of the cluster until the transaction ends, to serialize changes of settings. A change of a task
-- type's settings updates this row, too.
SELECT FROM howdah.settings FOR NO KEY UPDATE
