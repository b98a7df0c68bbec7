//! Flags of `howdah bulk … set`.

use std::time::Duration;

use howdah_client::proto::{BulkFields, bulk_fields::Start};
use howdah_core::logging::escaped;
use jiff::Timestamp;

use crate::commands::{failure::Failure, text, values};

/// Fields to set.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With set")]
pub(super) struct FieldArgs {
    /// Set the number of attempts, 1 to 1000
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
    pub(super) fn fields(&self) -> Result<Option<BulkFields>, Failure> {
        let wire = |name: &str, span: Option<Duration>| {
            let span = span.map(prost_types::Duration::try_from).transpose();
            span.map_err(|_| Failure::usage(format!("--{name} is too long")))
        };
        let at = self.run_at.map(|at| Start::RunAt(std::time::SystemTime::from(at).into()));
        let fields = BulkFields {
            max_attempts: self.max_attempts,
            timeout: wire("timeout", self.timeout)?,
            start: wire("delay", self.delay)?.map(Start::Delay).or(at),
            add_tags: self.add_tag.clone(),
            remove_tags: self.remove_tag.clone(),
        };
        Ok(Some(fields).filter(|fields| *fields != BulkFields::default()))
    }
}

/// Formats the fields as `, max attempts 5, start 2027-01-01T03:00:00Z`.
pub(super) fn shown(fields: &BulkFields) -> String {
    // The empty first element makes the joined text begin with a comma.
    let mut words = vec![String::new()];
    words.extend(fields.max_attempts.map(|attempts| format!("max attempts {attempts}")));
    words.extend(text::duration(fields.timeout.as_ref()).map(|span| format!("timeout {}", text::short(span))));
    words.extend(match &fields.start {
        None => None,
        Some(Start::RunAt(at)) => text::timestamp(Some(at)).map(|at| format!("start {}", text::time(at))),
        Some(Start::Delay(delay)) => match text::duration(Some(delay)) {
            Some(delay) if delay.is_zero() => Some("start now".to_owned()),
            delay => delay.map(|delay| format!("start in {}", text::short(delay))),
        },
    });
    words.extend(fields.add_tags.iter().map(|tag| format!("with tag {}", escaped(tag))));
    words.extend(fields.remove_tags.iter().map(|tag| format!("without tag {}", escaped(tag))));
    words.join(", ")
}
