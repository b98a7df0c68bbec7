-- A schedule enqueues a job at each planned time. A broker locks the row, inserts the jobs and advances next_planned in one
-- transaction, so each planned time fires once, whichever broker does it.
CREATE TABLE howdah.schedule (
    name          text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._:/-]{1,200}$'),
    -- Definition.
    template      text COLLATE "C" NOT NULL,  -- howdah.v1.NewJob as JSON, without its payload
    payload       bytea NOT NULL,            -- payload of the template
    task_type     text COLLATE "C" NOT NULL,  -- task type of the template, for lists
    period_ms     bigint CHECK (period_ms > 0),
    cron          text COLLATE "C",
    time_zone     text COLLATE "C",
    drift         text COLLATE "C" NOT NULL CHECK (drift IN ('plan', 'end')),
    overlap       text COLLATE "C" NOT NULL CHECK (overlap IN ('allow', 'skip', 'one-waiting')),
    missed        text COLLATE "C" NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
    missed_limit  integer NOT NULL,
    start_time    timestamptz,
    end_time      timestamptz CHECK (end_time > start_time),
    jitter_ms     bigint NOT NULL CHECK (jitter_ms >= 0),
    created       timestamptz NOT NULL DEFAULT now(),
    updated       timestamptz NOT NULL DEFAULT now(),
    -- State.
    paused        boolean NOT NULL,
    anchor        timestamptz NOT NULL,      -- periods count from here
    next_planned  timestamptz,               -- null: no time is planned now
    -- When brokers look at the schedule next: next_planned plus jitter; null: never. If next_at is set and next_planned is
    -- null, an SQL function has defined the schedule, and a broker has to plan it. Then anchor is the start of the current
    -- period, if there is a last_planned.
    next_at       timestamptz,
    held          timestamptz,               -- a planned time that fires when a job of the schedule has ended
    watching      boolean NOT NULL,          -- true: brokers look at the schedule when one of its jobs ends
    job_ids       bigint[] NOT NULL,         -- jobs of the schedule that may be unfinished
    last_planned  timestamptz,
    last_fired    timestamptz,
    last_job_id   bigint,
    fired         bigint NOT NULL,
    skipped       bigint NOT NULL,
    last_error    text COLLATE "C",
    zone_offset_s integer,                   -- UTC offset of the time zone at next_planned, as known when it was planned
    CHECK ((period_ms IS NULL) <> (cron IS NULL)),
    CHECK ((cron IS NULL) = (time_zone IS NULL))
);
CREATE INDEX schedule_by_next_at ON howdah.schedule (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedule_watching ON howdah.schedule (name) WHERE watching;
ALTER TABLE howdah.schedule ALTER COLUMN payload SET STORAGE EXTERNAL;

-- The principals that created schedules. Each principal may create only a share of all schedules.
CREATE TABLE howdah.schedule_creator (
    name      text COLLATE "C" PRIMARY KEY REFERENCES howdah.schedule (name) ON DELETE CASCADE,
    principal text COLLATE "C" NOT NULL
);
CREATE INDEX ON howdah.schedule_creator (principal);
