-- $1 name $2 lease_ms
INSERT INTO howdah.broker (id, name, expires)
VALUES (nextval('howdah.broker_id')::integer, $1::text, now() + $2::bigint * interval '1 millisecond')
RETURNING id
