-- The release that created each part of the schema. One row is for the tables (version: the last numbered migration that they
-- contain). The other rows are for the parts that are replaced as a whole when the hash of their text differs
-- (server/engine/schema/README.md). This table is created first. If several brokers start at once on an empty database, one of
-- them creates it, and the others wait. Later, brokers lock it to migrate.
CREATE TABLE howdah.schema_part (
    part      text COLLATE "C" PRIMARY KEY CHECK (part IN ('tables', 'functions', 'view')),
    hash      text COLLATE "C",
    version   integer,
    release   text COLLATE "C" NOT NULL,     -- release of the broker that created the part
    changed   timestamptz NOT NULL DEFAULT now(),
    structure jsonb,                        -- howdah.structure() after the last change of the tables; only in the row tables
    CHECK (CASE part WHEN 'tables' THEN version IS NOT NULL ELSE hash IS NOT NULL END)
);
