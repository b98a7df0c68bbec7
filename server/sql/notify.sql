-- A hint to the other brokers; nothing depends on its arrival. $1 channel $2 payload
SELECT pg_notify($1::text, $2::text)
