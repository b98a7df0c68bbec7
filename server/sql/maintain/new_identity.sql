-- This database is a copy: it gets an identity of its own. Page tokens of the original mean nothing here.
WITH new_key AS (
    UPDATE howdah.secret SET value = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) WHERE name = 'page_tokens'
)
UPDATE howdah.identity SET id = gen_random_uuid() RETURNING id::text
