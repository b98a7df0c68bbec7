-- Settings of a task type; null is the broker's default. See docs/OPTIONS.md.
ALTER TABLE howdah.task_type
    ADD COLUMN priority_step_us bigint CHECK (priority_step_us BETWEEN 1000 AND 35184372088832),
    ADD COLUMN timeout_ms bigint CHECK (timeout_ms > 0),
    ADD COLUMN paused boolean,
    ADD COLUMN max_payload_bytes integer CHECK (max_payload_bytes > 0),
    ADD COLUMN max_backlog bigint CHECK (max_backlog > 0),
    ADD COLUMN history_days smallint CHECK (history_days > 0),
    -- When priority_step_us was changed; null once the ranks of all waiting jobs have followed.
    ADD COLUMN step_changed timestamptz;

ALTER TABLE howdah.task_type DROP CONSTRAINT task_type_history_check;
ALTER TABLE howdah.task_type ADD CONSTRAINT task_type_history_check
    CHECK (history IN ('full', 'failures', 'none', 'without_empty'));

-- rank = priority × step + the time it became ready. A job whose priority is not 0, of a type with a step of
-- its own, carries that step in options; so the time can always be told from the rank, and ranks can follow a
-- new step or priority in any number of small transactions, however often that is broken off.
CREATE FUNCTION howdah.step_of(options jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options -> 'priority_step_us') = 'number'
                THEN least(greatest((options -> 'priority_step_us')::numeric, 0), 35184372088832)::bigint
                ELSE 35184372088832 END
$$;

-- Options that say with which step the rank was made; nothing is said of the one that is the default.
CREATE FUNCTION howdah.with_step(options jsonb, priority smallint, step bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(options) <> 'object' THEN options
                WHEN priority = 0 OR step = 35184372088832 THEN nullif(options - 'priority_step_us', '{}'::jsonb)
                ELSE coalesce(options, '{}'::jsonb) || jsonb_build_object('priority_step_us', step) END
$$;

-- The rank of a job, made with the step that its options say, under another priority and step.
CREATE FUNCTION howdah.reranked(rank bigint, priority smallint, options jsonb, new_priority smallint, step bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT rank - priority * howdah.step_of(options) + new_priority * step
$$;

-- A type's step. Statements that run often look it up themselves: this is called for each row.
CREATE OR REPLACE FUNCTION howdah.rank_step(type_id integer) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT t.priority_step_us FROM howdah.task_type t WHERE t.id = $1), 35184372088832)
$$;

-- For a type's backlog, and for changing the priority of its jobs.
CREATE INDEX waiting_by_type ON howdah.waiting (type_id);

-- What was deleted already of a day's history, where types differ in how long they keep it: only the jobs of
-- these types are left (keep), or all but theirs.
CREATE TABLE howdah.history_pruned (
    day    date PRIMARY KEY,
    types  integer[] NOT NULL,
    keep   boolean NOT NULL
);

-- Deletes from a part of one day's history, so many blocks from the first one on: the jobs of these types, or
-- (keep) those of all others; their payloads too. next_block is where to go on; null: that was all.
CREATE FUNCTION howdah.prune_history(day date, types integer[], keep boolean, first_block bigint, blocks bigint,
                                     OUT deleted bigint, OUT next_block bigint) LANGUAGE plpgsql AS $$
DECLARE
    part text := 'history_' || to_char(day, 'YYYYMMDD');
BEGIN
    deleted := 0;
    IF to_regclass('howdah.' || part) IS NULL THEN
        RETURN;
    END IF;
    IF pg_relation_size('howdah.' || part) > (first_block + blocks) * current_setting('block_size')::bigint THEN
        next_block := first_block + blocks;
    END IF;
    EXECUTE format(
        'WITH gone AS (DELETE FROM howdah.%I WHERE ctid >= %L::tid AND ctid < %L::tid AND (type_id = ANY ($1)) <> $2 '
                      'RETURNING id, options), '
        'apart AS (DELETE FROM howdah.payload WHERE id = ANY (ARRAY('
                      'SELECT id FROM gone WHERE options ? ''payload_bytes''))) '
        'SELECT count(*) FROM gone', part, format('(%s,0)', first_block), format('(%s,0)', first_block + blocks))
        INTO deleted USING types, keep;
END $$;
