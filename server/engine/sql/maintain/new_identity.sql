-- Gives this database, which is a copy, a new identity. Page tokens of the original become invalid here.
WITH new_key AS (
    UPDATE howdah.secret SET value = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) WHERE name = 'page_tokens'
)
UPDATE howdah.identity SET id = gen_random_uuid() RETURNING id::text
