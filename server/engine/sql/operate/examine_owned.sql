-- Returns facts about the schema for `howdah doctor` that only its owner may read, as one JSON object.
-- * stuck_sequences: sequences whose next value is an id that is already stored.
-- * missing: indexes, constraints and enabled triggers of the tables that no longer exist, with the statement that creates them.
-- * foreign_triggers: triggers and rules that Howdah has not created. They can change or suppress stored rows.
WITH structure AS MATERIALIZED (
    SELECT p.structure AS recorded, howdah.structure() AS present FROM howdah.schema_part p WHERE p.part = 'tables')
SELECT json_build_object(
    'missing', (SELECT coalesce(json_agg(json_build_object('name', r.key, 'statement', r.value) ORDER BY r.key), '[]')
                FROM structure s, jsonb_each_text(s.recorded) r WHERE NOT s.present ? r.key),
    'foreign_triggers', (SELECT coalesce(json_agg(p.key ORDER BY p.key), '[]')
                         FROM structure s, jsonb_object_keys(s.present) p(key)
                         WHERE p.key ~ '^(trigger|rule) ' AND NOT s.recorded ? p.key),
    'stuck_sequences', (SELECT coalesce(json_agg(s.sequence), '[]') FROM howdah.stored_ids() s
                        WHERE s.highest > coalesce(pg_sequence_last_value(s.sequence), 0)),
    'rights', (SELECT coalesce(json_agg(json_build_object(
                   'role', r.role, 'called', r.called, 'privilege', r.privilege, 'is_foreign', r.is_foreign, 'is_meant', r.is_meant,
                   'statement', r.statement) ORDER BY r.role, r.is_meant, r.called), '[]') FROM howdah.wrong_rights() r)
)::text AS facts
