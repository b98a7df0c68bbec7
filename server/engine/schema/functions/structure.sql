-- Returns the indexes, constraints and enabled triggers of the tables, without partitions: the name of each, such as "index
-- ready_by_id of ready", and the statement that creates it. Stored when the tables are created or migrated. `howdah doctor`
-- compares the stored value with the present one: a restore that fails halfway leaves objects out.
CREATE OR REPLACE FUNCTION howdah.structure() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH relation AS MATERIALIZED (
        SELECT c.oid AS id, c.relname FROM pg_class c
        WHERE c.relnamespace = (SELECT h.relnamespace FROM pg_class h WHERE h.oid = 'howdah.history'::regclass)
          AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname ~ '^({{own_relations}})$')
    SELECT jsonb_object_agg(format('%s %s of %s', o.kind, o.name, r.relname), o.definition)
    FROM relation r
    CROSS JOIN LATERAL (
        SELECT 'constraint' AS kind, k.conname AS name,
               format('ALTER TABLE %s ADD CONSTRAINT %I %s', r.id::regclass, k.conname, pg_get_constraintdef(k.oid)) AS definition
        FROM pg_constraint k WHERE k.conrelid = r.id AND k.contype IN ('p', 'u', 'x', 'f', 'c')
        UNION ALL
        SELECT 'index', x.relname, pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = r.id AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.conrelid = r.id)
        UNION ALL
        -- OR REPLACE also enables a disabled trigger.
        SELECT 'trigger', t.tgname, regexp_replace(pg_get_triggerdef(t.oid), '^CREATE', 'CREATE OR REPLACE') FROM pg_trigger t
        WHERE t.tgrelid = r.id AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
        UNION ALL
        SELECT 'rule', u.rulename, pg_get_ruledef(u.oid) FROM pg_rewrite u WHERE u.ev_class = r.id AND u.ev_enabled IN ('O', 'A')
    ) o
$$;
