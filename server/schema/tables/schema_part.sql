-- What made each part of the schema: a row for the tables (version: the numbered migrations that they contain already),
-- and one for each part that is replaced as a whole when the hash of its text differs (server/schema/README.md). Made first
-- of all: of brokers that start at once on an empty database one makes it, and the others wait. Later they lock it.
CREATE TABLE howdah.schema_part (
    part     text PRIMARY KEY CHECK (part IN ('tables', 'functions', 'view')),
    hash     text,
    version  integer,
    release  text NOT NULL,                  -- of the broker that made it
    changed  timestamptz NOT NULL DEFAULT now(),
    CHECK (CASE part WHEN 'tables' THEN version IS NOT NULL ELSE hash IS NOT NULL END)
);
