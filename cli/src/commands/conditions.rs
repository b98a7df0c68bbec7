//! Flags for conditions on the jobs of a task type, the same in all commands that select jobs.

use howdah_client::proto::JobConditions;
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::{text, values};

/// Conditions on jobs; all that are given must hold.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Conditions on the jobs of a type, which must all hold")]
pub(super) struct Conditions {
    /// Only jobs enqueued longer ago than this, such as 90m or 7d, or before this time, such as 2027-01-01T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    older_than: Option<Timestamp>,
    /// Only jobs enqueued at most this long ago, or at this time or later
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    newer_than: Option<Timestamp>,
    /// Only jobs with this tag
    #[arg(long, value_name = "TAG", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    tag: Option<String>,
    /// Only jobs with this fair key
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    fair_key: Option<String>,
    /// Only jobs with this limit key
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    limit_key: Option<String>,
    /// Only jobs that this worker holds, as shown by `howdah workers`; not for `reprioritize` and bulk operations
    #[arg(long, value_name = "WORKER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    worker: Option<String>,
    /// Only jobs of which at least this many attempts have started
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1000))]
    attempts_at_least: Option<i32>,
    /// Only jobs of which at most this many attempts have started; 0: only jobs that have never started
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1000))]
    attempts_at_most: Option<i32>,
}

impl Conditions {
    /// Returns the conditions as a message; `None` if no flag is given.
    pub(super) fn message(&self) -> Option<JobConditions> {
        let conditions = JobConditions {
            created_before: self.older_than.map(values::wire),
            created_since: self.newer_than.map(values::wire),
            tag: self.tag.clone().unwrap_or_default(),
            fair_key: self.fair_key.clone().unwrap_or_default(),
            limit_key: self.limit_key.clone().unwrap_or_default(),
            worker_id: self.worker.clone().unwrap_or_default(),
            attempts_at_least: self.attempts_at_least,
            attempts_at_most: self.attempts_at_most,
        };
        Some(conditions).filter(|conditions| *conditions != JobConditions::default())
    }

    /// Whether an index finds the jobs that meet the conditions.
    pub(super) fn are_indexed(&self) -> bool {
        self.tag.is_some() || self.worker.is_some()
    }

    /// The worker that must hold the jobs.
    pub(super) fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }
}

/// Describes conditions, each with a leading comma, such as `, tag a, limit key k`. Empty if no condition is set.
pub(super) fn shown(conditions: &JobConditions) -> String {
    let time = |time: &Option<_>| text::timestamp(time.as_ref()).map(|time| format!("{time:.0}"));
    let text = |text: &str| (!text.is_empty()).then(|| escaped(text).into_owned());
    let number = |number: Option<i32>| number.map(|number| number.to_string());
    let parts = [
        ("created before", time(&conditions.created_before)),
        ("created since", time(&conditions.created_since)),
        ("tag", text(&conditions.tag)),
        ("fair key", text(&conditions.fair_key)),
        ("limit key", text(&conditions.limit_key)),
        ("worker", text(&conditions.worker_id)),
        ("attempts at least", number(conditions.attempts_at_least)),
        ("attempts at most", number(conditions.attempts_at_most)),
    ];
    parts.into_iter().filter_map(|(name, value)| value.map(|value| format!(", {name} {value}"))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        conditions: Conditions,
    }

    #[test]
    fn flags_become_conditions_and_are_described_in_words() {
        let none = Line::try_parse_from(["howdah"]).unwrap().conditions;
        assert_eq!(none.message(), None);
        let words = "howdah --older-than 2027-01-01T03:00:00Z --newer-than 2026-01-01T00:00:00Z --tag a --fair-key f --limit-key l \
                     --worker 00 --attempts-at-least 0 --attempts-at-most 3";
        let all = Line::try_parse_from(words.split_whitespace()).unwrap().conditions.message().unwrap();
        assert_eq!((all.attempts_at_least, all.attempts_at_most), (Some(0), Some(3)));
        assert_eq!(
            shown(&all),
            ", created before 2027-01-01T03:00:00Z, created since 2026-01-01T00:00:00Z, tag a, fair key f, limit key l, \
             worker 00, attempts at least 0, attempts at most 3"
        );
    }

    #[test]
    fn an_age_is_a_duration_before_now() {
        let line = Line::try_parse_from(["howdah", "--older-than", "2h"]).unwrap();
        let before = line.conditions.older_than.unwrap();
        let ago = Timestamp::now().duration_since(before).as_secs();
        assert!((7_200..7_260).contains(&ago), "{ago}");
        for wrong in [["--tag", ""], ["--older-than", "soon"], ["--attempts-at-most", "1001"]] {
            assert!(Line::try_parse_from([&["howdah"], &wrong[..]].concat()).is_err(), "{wrong:?}");
        }
    }
}
