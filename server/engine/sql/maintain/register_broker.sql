-- Registers a broker under a new id. $1 name $2 lease_ms
INSERT INTO howdah.broker (id, name, expires, lease_ms)
VALUES (nextval('howdah.broker_id')::integer, $1::text, now() + $2::bigint * interval '1 millisecond', $2)
RETURNING id
