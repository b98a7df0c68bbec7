-- The yardstick: how many jobs per second this Postgres can process with one table per state, without broker and
-- clients. Each connection calls one procedure, which repeats rounds of a batch of jobs as fast as it can, with only
-- the commits in between.
--
-- These tables and statements belong to the yardstick. They are simpler than Howdah's and do not follow its
-- changes, so that results stay comparable between versions of Howdah.
CREATE SCHEMA howdah_yardstick;
SET search_path = howdah_yardstick;

CREATE SEQUENCE job_id;
CREATE TABLE ready (
    type_id   integer NOT NULL,
    rank      bigint NOT NULL,
    id        bigint NOT NULL,
    attempt   smallint NOT NULL DEFAULT 0,
    created   timestamptz NOT NULL DEFAULT now(),
    payload   bytea NOT NULL,
    headers   jsonb,
    PRIMARY KEY (type_id, rank, id)
);
CREATE TABLE leased (
    id         bigint PRIMARY KEY,
    token      bigint NOT NULL,
    broker_id  integer NOT NULL,
    type_id    integer NOT NULL,
    rank       bigint NOT NULL,
    attempt    smallint NOT NULL,
    created    timestamptz NOT NULL,
    leased_at  timestamptz NOT NULL DEFAULT now(),
    deadline   timestamptz,
    payload    bytea NOT NULL,
    headers    jsonb
);
CREATE TABLE history (
    finished   timestamptz NOT NULL DEFAULT now(),
    id         bigint NOT NULL,
    type_id    integer NOT NULL,
    outcome    smallint NOT NULL,
    attempt    smallint NOT NULL,
    created    timestamptz NOT NULL,
    leased_at  timestamptz,
    payload    bytea,
    result     bytea,
    headers    jsonb
) PARTITION BY RANGE (finished);
CREATE TABLE history_all PARTITION OF history DEFAULT;
CREATE INDEX ON history_all (id);

-- Three transactions per round: insert, claim, finish. Each connection has its own type, so connections contend
-- for pages and the write-ahead log, but not for rows.
CREATE PROCEDURE cycle(seconds double precision, batch integer, type integer, INOUT jobs bigint)
LANGUAGE plpgsql AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + seconds * interval '1 second';
    body CONSTANT bytea := decode(repeat('5a', 64), 'hex');
    taken bigint[];
    floor_rank bigint := 0;
BEGIN
    jobs := 0;
    WHILE clock_timestamp() < until LOOP
        INSERT INTO ready (type_id, rank, id, payload)
        SELECT type, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, nextval('job_id'), body
        FROM generate_series(1, batch);
        COMMIT;

        WITH picked AS (
            SELECT r.ctid FROM ready r
            WHERE r.type_id = type AND r.rank >= floor_rank
            ORDER BY r.rank, r.id LIMIT batch FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM picked)) RETURNING *
        ), lease AS (
            INSERT INTO leased (id, token, broker_id, type_id, rank, attempt, created, payload, headers)
            SELECT g.id, 1, 1, g.type_id, g.rank, g.attempt + 1, g.created, g.payload, g.headers FROM gone g
            RETURNING id, rank
        )
        SELECT array_agg(id), max(rank) INTO taken, floor_rank FROM lease;
        COMMIT;

        WITH gone AS (
            DELETE FROM leased WHERE id = ANY (taken) AND token = ANY (ARRAY[1::bigint]) RETURNING *
        )
        INSERT INTO history (id, type_id, outcome, attempt, created, leased_at, payload, headers)
        SELECT g.id, g.type_id, 6, g.attempt, g.created, g.leased_at, g.payload, g.headers FROM gone g;
        COMMIT;
        jobs := jobs + cardinality(taken);
    END LOOP;
END $$;

-- Two transactions per round: insert as leased, finish. This is the path of a job for which a worker already waits.
CREATE PROCEDURE direct(seconds double precision, batch integer, type integer, INOUT jobs bigint)
LANGUAGE plpgsql AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + seconds * interval '1 second';
    body CONSTANT bytea := decode(repeat('5a', 64), 'hex');
    taken bigint[];
BEGIN
    jobs := 0;
    WHILE clock_timestamp() < until LOOP
        WITH lease AS (
            INSERT INTO leased (id, token, broker_id, type_id, rank, attempt, created, payload)
            SELECT nextval('job_id'), 1, 1, type, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 1,
                   now(), body
            FROM generate_series(1, batch)
            RETURNING id
        )
        SELECT array_agg(id) INTO taken FROM lease;
        COMMIT;

        WITH gone AS (
            DELETE FROM leased WHERE id = ANY (taken) AND token = ANY (ARRAY[1::bigint]) RETURNING *
        )
        INSERT INTO history (id, type_id, outcome, attempt, created, leased_at, payload, headers)
        SELECT g.id, g.type_id, 6, g.attempt, g.created, g.leased_at, g.payload, g.headers FROM gone g;
        COMMIT;
        jobs := jobs + cardinality(taken);
    END LOOP;
END $$;
