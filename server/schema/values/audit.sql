-- What the table of the audit needs before it exists.

-- Refuses a change of rows of the audit. Rows go with the partition of their day, which the owner drops.
CREATE OR REPLACE FUNCTION howdah.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of the audit are never changed or deleted' USING ERRCODE = '42501',
        HINT = 'Brokers drop the partition of a day when it is older than their setting audit_days.';
END $$;
