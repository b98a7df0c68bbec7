//! The tables of jobs. A job is in the table for its state. Statements that differ only in the table share one file of
//! `server/engine/sql`, with these placeholders:
//!
//! | placeholder | meaning |
//! |---|---|
//! | `{table}`, `{state}` | name of the table; state of its jobs, as text |
//! | `{run_at}`, `{leased_at}`, `{finished}`, `{deadline}`, `{result}`, `{broker}` | value, or `NULL` if the table has none |
//! | `{after}` | condition for the rows after a position: `$1` type, `$2` rank, `$3` id |
//! | `{scan}`, `{order}`, `{last}` | sort order: of the scan, by an index; of the result; reversed, for the last row |
//! | `{rank}` | rank of a row, for its position; 0 if a position needs only the id |
//! | `{of_type}` | condition for the jobs of the type (`$1` null: of all types); `true` if the scan reads no other jobs |
//! | `{since}` | time that must be in the range of a search |
//! | `{fits}` | whether a selection includes a row, see [`FITS`] |

/// Whether a selection includes a row: `$1` type, `$5` last id, `$6` other priority than this (null: any), `$7` conditions (null:
/// none), `$8` jobs of a worker (null: any), `$9` only jobs that have failed, `$10` only jobs that failed before (null: any time),
/// `$11` error group, or an error of it (null: any). The error group comes last, because its computation is slow.
const FITS: &str = "CASE WHEN {of_type} AND id <= $5::bigint AND ($6::smallint IS NULL OR priority <> $6)
                AND howdah.meets($7::jsonb, created, attempt, options) AND ($8::bigint[] IS NULL OR id = ANY ($8))
                AND ({failed} OR NOT $9::boolean) AND ($10::timestamptz IS NULL OR {failed_before})
           THEN $11::text IS NULL OR {group} IN ($11, (SELECT howdah.error_group($11))) END";

/// Values of the placeholders for one table.
#[derive(Clone, Copy)]
pub(super) struct JobTable {
    table: &'static str,
    state: &'static str,
    run_at: &'static str,
    leased_at: &'static str,
    finished: &'static str,
    deadline: &'static str,
    result: &'static str,
    broker: &'static str,
    after: &'static str,
    scan: &'static str,
    order: &'static str,
    last: &'static str,
    rank: &'static str,
    of_type: &'static str,
    since: &'static str,
    /// Whether an attempt of a row has failed, for `{fits}`.
    failed: &'static str,
    /// Whether a row failed before `$10` and was not retried since, for `{fits}`.
    failed_before: &'static str,
    /// Error group of a row, for `{fits}`.
    group: &'static str,
}

const NO_TIME: &str = "NULL::timestamptz";

/// Base values, for a table without an index by type: a scan reads the jobs of all types, by id. The condition on `$2`
/// in `after` is always true; it only gives the unused parameter a type.
const BY_ID: JobTable = JobTable {
    table: "",
    state: "",
    run_at: NO_TIME,
    leased_at: NO_TIME,
    finished: NO_TIME,
    deadline: NO_TIME,
    result: "NULL::bytea",
    broker: "NULL::text",
    after: "id > $3::bigint AND $2::bigint IS NOT NULL",
    scan: "id",
    order: "id",
    last: "id DESC",
    rank: "0::bigint",
    of_type: "type_id = coalesce($1::integer, type_id)",
    since: "created",
    failed: "true",
    failed_before: "false",
    group: "howdah.failure_group(failures -> -1)",
};

pub(super) const READY: JobTable = JobTable {
    table: "ready",
    state: "'ready'::text",
    after: "type_id = $1::integer AND (rank, id) > ($2::bigint, $3::bigint)",
    scan: "type_id, rank, id",
    order: "rank, id",
    last: "rank DESC, id DESC",
    rank: "rank",
    of_type: "true",
    ..BY_ID
};

pub(super) const LEASED: JobTable = JobTable {
    table: "leased",
    state: "'leased'::text",
    leased_at: "leased_at",
    deadline: "deadline",
    broker: "(SELECT b.name FROM howdah.broker b WHERE b.id = broker_id)",
    ..BY_ID
};

/// `failed_before` excludes jobs that are due, because they may have been retried since their failure.
pub(super) const SCHEDULED: JobTable = JobTable {
    table: "scheduled",
    state: "'scheduled'::text",
    run_at: "run_at",
    leased_at: "leased_at",
    failed: "failures IS NOT NULL",
    failed_before: "run_at > now() AND (failures -> -1 ->> 'failed')::timestamptz <= $10",
    ..BY_ID
};

pub(super) const WAITING: JobTable = JobTable { table: "waiting", state: "'waiting'::text", ..BY_ID };

pub(super) const DEAD: JobTable = JobTable {
    table: "dead",
    state: "'dead'::text",
    leased_at: "leased_at",
    finished: "died",
    after: "type_id = $1::integer AND id > $3::bigint AND $2::bigint IS NOT NULL",
    scan: "type_id, id",
    of_type: "true",
    since: "died",
    failed_before: "died <= $10",
    group: "error_group",
    ..BY_ID
};

/// Ready and dead jobs of all task types, by id.
pub(super) const READY_OF_ALL: JobTable = JobTable { table: "ready", state: READY.state, ..BY_ID };
pub(super) const DEAD_OF_ALL: JobTable =
    JobTable { table: "dead", state: DEAD.state, leased_at: "leased_at", finished: "died", ..BY_ID };

/// Dead jobs of one error group. `$2` is the error group, or an error that belongs to it.
pub(super) const DEAD_GROUP: JobTable = JobTable {
    after: "type_id = $1::integer AND error_group IN ($2::text, howdah.error_group($2)) AND id > $3::bigint",
    scan: "id",
    ..DEAD
};

/// Finished jobs, the newest first. `$2` is the outcome (null: any). With the id 0, a scan starts at the newest job.
pub(super) const HISTORY: JobTable = JobTable {
    table: "history",
    state: "outcome::text",
    leased_at: "leased_at",
    finished: "finished",
    result: "CASE WHEN $5::boolean THEN result END",
    after: "id < CASE WHEN $3::bigint = 0 THEN 9223372036854775807 ELSE $3 END",
    scan: "id DESC",
    order: "id DESC",
    last: "id",
    of_type: "type_id = coalesce($1::integer, type_id) AND ($2::text IS NULL OR outcome = $2::howdah.job_state)",
    since: "finished",
    ..BY_ID
};

impl JobTable {
    /// Replaces the placeholders in the text of a statement.
    pub(super) fn fill(&self, text: &str) -> String {
        let values = [
            ("{fits}", FITS),
            ("{failed}", self.failed),
            ("{failed_before}", self.failed_before),
            ("{group}", self.group),
            ("{table}", self.table),
            ("{state}", self.state),
            ("{run_at}", self.run_at),
            ("{leased_at}", self.leased_at),
            ("{finished}", self.finished),
            ("{deadline}", self.deadline),
            ("{result}", self.result),
            ("{broker}", self.broker),
            ("{after}", self.after),
            ("{scan}", self.scan),
            ("{order}", self.order),
            ("{last}", self.last),
            ("{rank}", self.rank),
            ("{of_type}", self.of_type),
            ("{since}", self.since),
        ];
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}
