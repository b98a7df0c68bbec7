-- Functions that the definition of the table audit uses, so they are created before the table.

-- Refuses changes of audit rows. Rows are only removed with their day partition, which the owner drops.
CREATE OR REPLACE FUNCTION howdah.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of the audit are never changed or deleted' USING ERRCODE = '42501',
        HINT = 'Brokers drop the partition of a day when it is older than their setting audit_days.';
END $$;
