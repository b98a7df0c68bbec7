-- The identity of this database. Its brokers send it with every answer. A copy of a database has the same identity.
CREATE TABLE howdah.identity (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id        uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO howdah.identity DEFAULT VALUES;

-- Keys that all brokers of the database share. howdah_reader cannot read them.
CREATE TABLE howdah.secret (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);
-- The key consists of two random UUIDs with 122 random bits each, because two bits are the variant and four the version.
INSERT INTO howdah.secret VALUES ('page_tokens', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
