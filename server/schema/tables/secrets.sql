-- Keys that all brokers of the database share. howdah_reader does not read them.
CREATE TABLE howdah.secret (name text PRIMARY KEY, value bytea NOT NULL);
-- 244 random bits: two of a UUID's 128 have a meaning, and its version four more.
INSERT INTO howdah.secret VALUES ('page_tokens', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
