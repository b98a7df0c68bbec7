-- Records a change in the audit, in the transaction of the change. Task types are given by id or by name. Without a principal,
-- it records the role of this session.
-- $1 principal, or null $2 broker $3 peer, or null $4 method $5 reason $6 ids of types $7 names of types $8 count $9 ids
INSERT INTO howdah.audit (principal, broker, peer, method, reason, types, count, ids)
SELECT coalesce($1::text, 'sql:' || session_user), $2::text,
       coalesce($3::text, host(inet_client_addr()) || ':' || inet_client_port(), ''), $4::text, $5::text,
       ARRAY(SELECT t.name FROM howdah.task_type t WHERE t.id = ANY ($6::integer[])
             UNION SELECT unnest($7::text[]) ORDER BY 1 LIMIT 10),
       $8::bigint, $9::text[]
