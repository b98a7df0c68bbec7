//! The operation and the jobs of a bulk operation, as flags of `howdah bulk`.

use std::time::Duration;

use howdah_client::proto::{BulkFields, BulkOperation, BulkSpec, JobState, bulk_fields::Start};
use jiff::Timestamp;

use crate::commands::{conditions::Conditions, failure::Failure, jobs, values};

/// Operation to apply to the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    /// Retry dead jobs, and jobs that wait for their next attempt, now
    Retry,
    /// Cancel unfinished jobs
    Cancel,
    /// Move dead jobs to history
    Discard,
    /// Give unfinished jobs another priority
    Reprioritize,
    /// Restore the jobs that a bulk cancel or discard has ended
    Undo,
    /// Move jobs that do not run, including dead ones, to another task type
    Move,
    /// Set attempts, start time, timeout or tags
    Set,
}

/// Operations that need a task type.
const OF_TYPE: [&str; 6] = ["retry", "cancel", "discard", "reprioritize", "move", "set"];

/// An operation and the jobs to change.
#[derive(Debug, clap::Args)]
pub(super) struct Spec {
    /// Operation to apply to the jobs
    #[arg(value_name = "OPERATION", value_enum)]
    operation: Operation,
    /// With undo: id of the bulk operation to undo
    #[arg(value_name = "ID", required_if_eq("operation", "undo"), value_parser = values::id)]
    undone: Option<i64>,
    /// Task type of the jobs; not with undo
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "undone",
          required_if_eq_any = OF_TYPE.map(|operation| ("operation", operation)))]
    pub(super) task_type: Option<String>,
    /// Only jobs in this state: ready, leased, scheduled, waiting, dead [default: all states that the operation changes]
    #[arg(long, value_name = "STATE", value_parser = jobs::state)]
    state: Option<JobState>,
    /// Only jobs whose last error belongs to this group, as shown by `howdah errors`; an error text selects its group too,
    /// unless the worker reported a place
    #[arg(long = "error", value_name = "GROUP", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    error_group: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
    /// With reprioritize: the new priority, -1000 to 1000; jobs with lower numbers run first
    #[arg(long, value_name = "PRIORITY", allow_negative_numbers = true, required_if_eq("operation", "reprioritize"),
          value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    priority: Option<i32>,
    /// With move: target task type; created if it does not exist
    #[arg(long = "to", value_name = "TYPE", required_if_eq("operation", "move"))]
    to_task_type: Option<String>,
    #[command(flatten)]
    fields: FieldArgs,
    /// Change at most this many jobs per second [default: limited only by other load]
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(i32).range(1..=1_000_000))]
    rate: Option<i32>,
}

impl Spec {
    pub(super) fn spec(&self) -> Result<BulkSpec, Failure> {
        let operation = match self.operation {
            Operation::Retry => BulkOperation::Retry,
            Operation::Cancel => BulkOperation::Cancel,
            Operation::Discard => BulkOperation::Discard,
            Operation::Reprioritize => BulkOperation::Reprioritize,
            Operation::Undo => BulkOperation::Undo,
            Operation::Move => BulkOperation::Move,
            Operation::Set => BulkOperation::Set,
        };
        let fields = self.fields.fields()?;
        if (self.operation == Operation::Set) != fields.is_some() {
            let flags = "--max-attempts, --timeout, --delay, --run-at, --add-tag or --remove-tag";
            let which = if fields.is_some() {
                format!("{flags} requires the operation `set`")
            } else {
                format!("the operation `set` requires {flags}")
            };
            return Err(Failure::usage(which));
        }
        Ok(BulkSpec {
            operation: operation as i32,
            task_type: self.task_type.clone().unwrap_or_default(),
            state: self.state.unwrap_or_default() as i32,
            error_group: self.error_group.clone().unwrap_or_default(),
            priority: self.priority,
            max_jobs_per_second: self.rate.unwrap_or_default(),
            undo_bulk_id: self.undone.unwrap_or_default(),
            to_task_type: self.to_task_type.clone().unwrap_or_default(),
            fields,
            conditions: self.conditions.message(),
        })
    }
}

/// Fields to set.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With set")]
struct FieldArgs {
    /// Set the maximum number of attempts, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1_000))]
    max_attempts: Option<i32>,
    /// Set the timeout of an attempt, such as 90s, 5m, 2h 30m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Start jobs this long from now, such as 90s, 5m, 2h 30m; 0s: now
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    delay: Option<Duration>,
    /// Start jobs at this time, such as 2027-01-01T03:00:00Z; UTC if no zone is given
    #[arg(long, value_name = "TIME", conflicts_with = "delay", value_parser = values::time)]
    run_at: Option<Timestamp>,
    /// Add this tag; repeatable
    #[arg(long, value_name = "TAG", allow_hyphen_values = true)]
    add_tag: Vec<String>,
    /// Remove this tag; repeatable
    #[arg(long, value_name = "TAG", allow_hyphen_values = true)]
    remove_tag: Vec<String>,
}

impl FieldArgs {
    /// The fields to set; `None` if no flag is given.
    fn fields(&self) -> Result<Option<BulkFields>, Failure> {
        let fields = BulkFields {
            max_attempts: self.max_attempts,
            timeout: self.timeout.map(|time| values::wire_duration("--timeout", time)).transpose()?,
            start: values::start(self.run_at, self.delay, Start::RunAt, Start::Delay)?,
            add_tags: self.add_tag.clone(),
            remove_tags: self.remove_tag.clone(),
        };
        Ok(Some(fields).filter(|fields| *fields != BulkFields::default()))
    }
}
