-- Drops the tenants' tables in groups, because the number of locks per transaction is limited.
DO $$
DECLARE
    part text[];
BEGIN
    LOOP
        part := ARRAY(SELECT format('howdah_tenants.%I', tablename) FROM pg_tables
                      WHERE schemaname = 'howdah_tenants' AND tablename ~ '_' LIMIT 100);
        EXIT WHEN cardinality(part) = 0;
        EXECUTE 'DROP TABLE ' || array_to_string(part, ', ');
        COMMIT;
    END LOOP;
    DROP SCHEMA IF EXISTS howdah_tenants CASCADE;
END $$
