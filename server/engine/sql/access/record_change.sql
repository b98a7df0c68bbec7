-- Records a change in the audit, in the transaction of the change. Task types are given by id or by name. Without a principal,
-- it records the role of this session.
-- For a change of settings, $10 to $12 contain the kind, the name and the previous values of the settings. If all settings have
-- these values still, nothing is recorded.
-- $1 principal, or null $2 broker $3 peer, or null $4 method $5 reason $6 ids of types $7 names of types $8 count $9 ids $10
-- kind of settings $11 name of the settings $12 values before the change (null: not a change of settings)
INSERT INTO howdah.audit (principal, broker, peer, method, reason, types, count, ids, changes)
SELECT coalesce($1::text, 'sql:' || session_user), $2::text,
       coalesce($3::text, host(inet_client_addr()) || ':' || inet_client_port(), ''), $4::text, $5::text,
       ARRAY(SELECT t.name FROM howdah.task_type t WHERE t.id = ANY ($6::integer[])
             UNION SELECT unnest($7::text[]) ORDER BY 1 LIMIT 10),
       $8::bigint, $9::text[], d.changes
FROM (SELECT coalesce(howdah.changed_settings($12::text::jsonb, howdah.audited_settings($10::text, $11::text)), '{}') AS changes) d
WHERE $12 IS NULL OR d.changes <> '{}'
