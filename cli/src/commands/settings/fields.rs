//! Settings of the cluster: names, descriptions and formats of values.

use std::time::Duration;

use howdah_client::proto::ClusterSettings;
use howdah_core::config::{bytes_of, bytes_words, duration_text};

use crate::commands::text;

/// Setting of the cluster.
#[derive(Debug)]
pub(super) struct Field {
    /// Name, as in the protocol.
    pub(super) name: &'static str,
    /// Description of the limit.
    pub(super) about: &'static str,
    /// Format of the value.
    pub(super) kind: Kind,
}

/// Format of a setting's value, with an accessor of the setting's field in `ClusterSettings`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Number of bytes, with or without a unit.
    Size(fn(&mut ClusterSettings) -> &mut i64),
    /// Whole number.
    Count(fn(&mut ClusterSettings) -> &mut u32),
    /// Duration with a unit.
    Time(fn(&mut ClusterSettings) -> &mut Option<prost_types::Duration>),
}

pub(super) const ALL: [Field; 9] = [
    field("payload_bytes", "maximum size of a payload and of a result", Kind::Size(|s| &mut s.payload_bytes)),
    field("headers", "maximum number of headers of a job", Kind::Count(|s| &mut s.headers)),
    field("header_bytes", "maximum total size of a job's headers", Kind::Size(|s| &mut s.header_bytes)),
    field("key_bytes", "maximum length of keys of all kinds, and of labels", Kind::Count(|s| &mut s.key_bytes)),
    field(
        "batch",
        "maximum number of jobs in an enqueue, outcomes in a settle, ids in a cancel, dependencies of a job",
        Kind::Count(|s| &mut s.batch),
    ),
    field(
        "max_delay",
        "maximum delay of a job, and maximum time until run_at and expire_at",
        Kind::Time(|s| &mut s.max_delay),
    ),
    field("max_timeout", "maximum timeout of an attempt, and maximum extension", Kind::Time(|s| &mut s.max_timeout)),
    field("task_types", "maximum number of task types", Kind::Count(|s| &mut s.task_types)),
    field(
        "dead_days",
        "days after which dead jobs are discarded, unless their type sets its own; 0: never",
        Kind::Count(|s| &mut s.dead_days),
    ),
];

const fn field(name: &'static str, about: &'static str, kind: Kind) -> Field {
    Field { name, about, kind }
}

/// Argument `SETTING=VALUE` of `howdah settings set`: the setting and its parsed value.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) field: &'static Field,
    value: Number,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Size(i64),
    Count(u32),
    Time(prost_types::Duration),
}

impl Assignment {
    pub(super) fn apply(&self, settings: &mut ClusterSettings) {
        match (self.field.kind, self.value) {
            (Kind::Size(at), Number::Size(value)) => *at(settings) = value,
            (Kind::Count(at), Number::Count(value)) => *at(settings) = value,
            (Kind::Time(at), Number::Time(value)) => *at(settings) = Some(value),
            _ => {}
        }
    }
}

/// Parses `SETTING=VALUE`. Leaves the check of bounds to the broker. Rejects 0, which the broker would interpret as
/// "unchanged".
pub(super) fn assignment(text: &str) -> Result<Assignment, String> {
    static FIELDS: [Field; ALL.len()] = ALL;
    let (name, value) = crate::commands::broker_args::key_value(text)?;
    let field = FIELDS.iter().find(|field| field.name == name).ok_or_else(|| {
        let names = ALL.map(|field| field.name).join(", ");
        format!("{name:?} is not a setting of the cluster; use one of {names}")
    })?;
    let value = value.trim();
    let number = match field.kind {
        Kind::Size(_) => bytes_of(value).and_then(|bytes| i64::try_from(bytes).ok()).map(Number::Size),
        Kind::Count(_) => value.replace('_', "").parse().ok().map(Number::Count),
        Kind::Time(_) => {
            let time = humantime::parse_duration(value).ok();
            time.and_then(|time| prost_types::Duration::try_from(time).ok()).map(Number::Time)
        }
    };
    let expected = match field.kind {
        Kind::Size(_) => "a number of bytes, such as 65536 or 64KiB",
        Kind::Count(_) => "a whole number",
        Kind::Time(_) => "a duration with its unit, such as 90s, 12h or 30d",
    };
    match number {
        Some(Number::Size(0) | Number::Count(0)) => {
            Err(format!("{name} cannot be 0; `howdah settings reset {name}` restores its default"))
        }
        Some(value) => Ok(Assignment { field, value }),
        None => Err(format!("{name} must be {expected}")),
    }
}

impl Kind {
    /// Formats the value as text.
    pub(super) fn words(self, settings: &ClusterSettings) -> String {
        let mut settings = *settings;
        match self {
            Self::Size(at) => bytes_words(u64::try_from(*at(&mut settings)).unwrap_or_default()),
            Self::Count(at) => at(&mut settings).to_string(),
            Self::Time(at) => duration_text(time(at(&mut settings).as_ref())),
        }
    }
}

fn time(value: Option<&prost_types::Duration>) -> Duration {
    text::duration(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use howdah_core::job;

    use super::*;

    #[test]
    fn every_setting_of_the_cluster_is_there() {
        assert_eq!(ALL.map(|field| field.name), job::ClusterSettings::NAMES);
    }

    #[test]
    fn values_are_read_as_people_write_them() {
        let mut settings = ClusterSettings::default();
        for text in ["payload_bytes=2MiB", "header_bytes=16 KiB", "batch=20_000", "max_delay=30d", "max_timeout=1h 30m"]
        {
            assignment(text).unwrap().apply(&mut settings);
        }
        let shown = ALL.map(|field| field.kind.words(&settings));
        assert_eq!(shown, ["2 MiB", "0", "16 KiB", "0", "20000", "30days", "1h 30m", "0", "0"]);
    }

    #[test]
    fn an_invalid_assignment_is_refused_with_the_reason() {
        for (text, expected) in [
            ("payload_bytes", "an = is missing: write KEY=VALUE"),
            ("payload=1", "\"payload\" is not a setting of the cluster; use one of payload_bytes, headers, "),
            ("payload_bytes=many", "payload_bytes must be a number of bytes, such as 65536 or 64KiB"),
            ("batch=-1", "batch must be a whole number"),
            ("batch=0", "batch cannot be 0; `howdah settings reset batch`"),
            ("max_delay=5", "max_delay must be a duration with its unit"),
        ] {
            let error = assignment(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
