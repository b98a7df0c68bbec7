-- What tells this database from others: its brokers send it with every answer. A copy of a database has the same.
CREATE TABLE howdah.identity (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id        uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO howdah.identity DEFAULT VALUES;

-- Keys that all brokers of the database share. howdah_reader does not read them.
CREATE TABLE howdah.secret (name text PRIMARY KEY, value bytea NOT NULL);
-- 244 random bits: two of a UUID's 128 have a meaning, and its version four more.
INSERT INTO howdah.secret VALUES ('page_tokens', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
