-- The archive: finished jobs as files. Each archived day has a row in howdah.archive. While archive_target has its row, a
-- history partition is dropped only after its day is archived.
CREATE TABLE howdah.archive_target (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    url       text COLLATE "C" NOT NULL,
    since     timestamptz NOT NULL DEFAULT now(),
    set_by    text COLLATE "C" NOT NULL   -- the last broker that was started with this URL
);

CREATE TABLE howdah.archive (
    day            date PRIMARY KEY,
    -- sealed: jobs of the day are to be written, or are being written. late: jobs that were added after the day was sealed are
    -- to be written, or are being written. publishing: the files are written and verified, and get their final names. archived:
    -- all jobs are in published files. dropped: all jobs are in published files, and the history partition was dropped.
    state          text COLLATE "C" NOT NULL CHECK (state IN ('sealed', 'late', 'publishing', 'archived', 'dropped')),
    -- Incremented each time an archive run writes jobs of the day to files.
    generation     integer NOT NULL DEFAULT 1,
    url            text COLLATE "C",
    -- The archive run that works on the day. As long as it renews held_until, no other run works on the day. A row lock is not
    -- used, because a transaction that is open for minutes would keep VACUUM from cleaning up any table.
    run            text COLLATE "C",
    held_by        text COLLATE "C",
    held_until     timestamptz,
    -- Totals over all generations: jobs, files, bytes, and the manifest that lists all files.
    jobs           bigint NOT NULL DEFAULT 0,
    files          integer NOT NULL DEFAULT 0,
    bytes          bigint NOT NULL DEFAULT 0,
    manifest       jsonb,
    -- Manifest of the written and verified files that replace the day's files, from which howdah archive forget removes jobs.
    -- Null: no rewrite is in progress.
    rewrite        jsonb,
    archived_at    timestamptz,
    archived_by    text COLLATE "C",
    -- Error of the last archive run; null: it has not failed.
    error          text COLLATE "C"
);

-- The files of archived days. Lookups by job id use the id ranges.
CREATE TABLE howdah.archive_file (
    day        date NOT NULL,
    path       text COLLATE "C" NOT NULL,
    task_type  text COLLATE "C" NOT NULL,
    ids        int8range NOT NULL,        -- from the lowest id to the highest
    jobs       bigint NOT NULL,
    bytes      bigint NOT NULL
);
-- The table has no primary key, because one statement deletes the rows of a day and inserts new rows, some with the same path.
ALTER TABLE howdah.archive_file REPLICA IDENTITY FULL;
CREATE INDEX archive_file_by_day ON howdah.archive_file (day);
CREATE INDEX archive_file_by_type ON howdah.archive_file (task_type, day);
CREATE INDEX archive_file_by_ids ON howdah.archive_file USING gist (ids);

-- Jobs that were added to a day's history after the day was sealed. A trigger on the day's partition adds the rows, and the
-- next archive run writes the jobs. generation: the generation of files that contains the job; null: not assigned yet.
CREATE TABLE howdah.archive_late (
    day         date NOT NULL,
    id          bigint NOT NULL,
    generation  integer,
    PRIMARY KEY (day, id)
);
