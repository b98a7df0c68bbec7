-- Tests whether a job can be stored and claimed. A job without a type is inserted and claimed in a subtransaction, which is
-- then rolled back, so other sessions never see it. The outer transaction commits, so that the commit is tested too.
DO $$
DECLARE
    job bigint := nextval('howdah.job_id');
BEGIN
    INSERT INTO howdah.ready (id, rank, created, type_id, attempt, max_attempts, priority, payload)
    VALUES (job, 0, now(), 0, 0, 1, 0, '');
    INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (0, 1);
    DELETE FROM howdah.ready WHERE type_id = 0 AND rank = 0 AND id = job;
    INSERT INTO howdah.leased (id, rank, created, token, leased_at, broker_id, type_id, attempt, max_attempts, priority, payload)
    VALUES (job, 0, now(), 0, now(), 0, 0, 1, 1, 0, '');
    RAISE SQLSTATE 'HW000';
EXCEPTION WHEN SQLSTATE 'HW000' THEN
    NULL;
END $$
