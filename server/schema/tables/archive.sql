-- The archive: finished jobs as files, of which each day has a row here. A partition of history is dropped only when its
-- day is archived, for as long as archive_target has its row.
CREATE TABLE howdah.archive_target (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    url       text NOT NULL,
    since     timestamptz NOT NULL DEFAULT now(),
    set_by    text NOT NULL               -- the broker that was started with it last
);

CREATE TABLE howdah.archive (
    day            date PRIMARY KEY,
    -- sealed: its jobs are being written, or are to be. late: the same of jobs that came after that. publishing: they are
    -- written and compared, and get their names. archived: done. dropped: the partition is gone.
    state          text NOT NULL CHECK (state IN ('sealed', 'late', 'publishing', 'archived', 'dropped')),
    -- Raised each time that jobs of the day are written.
    generation     integer NOT NULL DEFAULT 1,
    url            text,
    -- Who works on it: one run at a time, for as long as it renews this. There is no lock, because whoever held one for
    -- minutes would keep VACUUM from all tables.
    run            text,
    held_by        text,
    held_until     timestamptz,
    -- Of all generations: jobs, files, bytes, and the manifest with all files.
    jobs           bigint NOT NULL DEFAULT 0,
    files          integer NOT NULL DEFAULT 0,
    bytes          bigint NOT NULL DEFAULT 0,
    manifest       jsonb,
    -- The same after a forget: new files are written and compared, and take the place of the old ones. Null: nothing to be done.
    rewrite        jsonb,
    archived_at    timestamptz,
    archived_by    text,
    -- Why the last run failed.
    error          text
);

-- The files of archived days: where a job of an id may be.
CREATE TABLE howdah.archive_file (
    day        date NOT NULL,
    path       text NOT NULL,
    task_type  text NOT NULL,
    ids        int8range NOT NULL,        -- from the lowest to the highest
    jobs       bigint NOT NULL,
    bytes      bigint NOT NULL
);
CREATE INDEX archive_file_by_day ON howdah.archive_file (day);
CREATE INDEX archive_file_by_ids ON howdah.archive_file USING gist (ids);

-- Jobs that came to a day after it was sealed: a trigger on its partition notes them. They are written next. generation:
-- the one that they are written in; null: not assigned yet.
CREATE TABLE howdah.archive_late (
    day         date NOT NULL,
    id          bigint NOT NULL,
    generation  integer
);
CREATE INDEX archive_late_by_id ON howdah.archive_late (day, id);
