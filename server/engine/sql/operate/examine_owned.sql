-- Returns facts about the schema for `howdah doctor` that only its owner may read, as one JSON object.
-- * stuck_sequences: sequences whose next value is an id that is already stored.
SELECT json_build_object(
    'stuck_sequences', (SELECT coalesce(json_agg(s.sequence), '[]') FROM howdah.stored_ids() s
                        WHERE s.highest > coalesce(pg_sequence_last_value(s.sequence), 0)),
    'rights', (SELECT coalesce(json_agg(json_build_object(
                   'role', r.role, 'called', r.called, 'privilege', r.privilege, 'is_foreign', r.is_foreign, 'is_meant', r.is_meant,
                   'statement', r.statement) ORDER BY r.role, r.is_meant, r.called), '[]') FROM howdah.wrong_rights() r)
)::text AS facts
