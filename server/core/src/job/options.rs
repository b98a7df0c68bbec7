//! Options of a job, one row each. gRPC, HTTP, SQL, the command line (with dashes instead of dots and underscores) and the Rust
//! client use the names in these rows. The flags of the command line and the tables in `docs/reference/options.md` are generated
//! from them; tests compare the protocol and the SQL functions with them.

use std::{fmt, time::Duration};

use super::{ClusterSettings, Limits};

/// An option of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobOption {
    /// Name. A dot separates the name of a nested option, such as `retry_policy.kind`.
    pub name: &'static str,
    /// Type and allowed values.
    pub kind: OptionKind,
    /// Description in one sentence without a full stop.
    pub about: &'static str,
    /// Group in the documentation.
    pub group: OptionGroup,
    /// Default in words.
    pub default: &'static str,
    /// Options of which at least one must be set too; empty if the option stands alone.
    pub needs: &'static [&'static str],
    /// Notes for the reference page, in Markdown; links are relative to `docs/reference`.
    pub notes: &'static str,
}

impl JobOption {
    /// Returns the option with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.name == name)
    }

    /// Name for people, such as `Limit key`.
    pub fn label(&self) -> String {
        let words = self.name.replace('.', ": ").replace('_', " ");
        format!("{}{}", words[..1].to_uppercase(), &words[1..])
    }

    /// Problem of a job that has the option, but no option that it needs.
    pub fn lack(&self) -> String {
        let rest = if self.needs.len() == 1 { "that" } else { "one of them" };
        format!("is set without {}; set {rest} too", self.needs.join(" or "))
    }

    /// Whether the option refers to other jobs of the same request, so that it does not apply to a single job.
    pub fn is_of_request(&self) -> bool {
        matches!(self.name, "local_name" | "after_local")
    }
}

/// Type and allowed values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// An integer in this range.
    Integer(i64, i64),
    /// A number in this range, given in hundredths.
    Hundredths(i64, i64),
    /// Text of at most this many bytes, without control characters.
    Text(usize),
    /// Text of at most `key_bytes`, without control characters.
    Key,
    /// A human-readable duration in this range; the maximum may be the name of a cluster setting.
    Duration(&'static str, &'static str),
    /// At most this many human-readable durations in a range.
    Durations(usize, &'static str, &'static str),
    /// A time, at most `max_delay` ahead.
    Time,
    /// One of these words.
    Word(&'static [&'static str]),
    /// The name of a task type.
    TaskType,
    /// At most this many names of task types.
    TaskTypes(usize),
    /// Ids of at most `batch` jobs.
    Jobs,
    /// Named texts: at most `headers` of them, with at most `header_bytes` in total.
    Headers,
    /// Names of at most `batch` jobs of the same request.
    LocalNames,
    /// At most [`Limits::TAGS`] texts, each of 1 to [`Limits::TAG_BYTES`] without control characters.
    Tags,
}

/// Group of related options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionGroup {
    /// Commonly used options.
    Job,
    /// Retry policy.
    Retry,
    /// Unique keys.
    Key,
    /// Expiry, limits and fair order.
    Order,
    /// Stages and dependencies.
    Sequence,
}

impl OptionGroup {
    /// All groups, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Job, Self::Retry, Self::Key, Self::Order, Self::Sequence];

    /// Heading in the documentation.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::Retry => "Retries",
            Self::Key => "Keys",
            Self::Order => "Expiry, limits, fair order",
            Self::Sequence => "Stages and dependencies",
        }
    }
}

impl OptionKind {
    /// Whether the option may be given several times.
    pub const fn is_repeated(self) -> bool {
        use OptionKind::{Durations, Headers, Jobs, LocalNames, Tags, TaskTypes};
        matches!(self, Durations(..) | TaskTypes(_) | Jobs | Headers | LocalNames | Tags)
    }

    /// Placeholder of the option's value in a usage line.
    pub const fn value_name(self) -> &'static str {
        match self {
            Self::Integer(..) | Self::Hundredths(..) => "N",
            Self::Text(_) | Self::Key => "TEXT",
            Self::Tags => "TAG",
            Self::Duration(..) | Self::Durations(..) => "DURATION",
            Self::Time => "TIME",
            Self::Word(_) => "WORD",
            Self::TaskType | Self::TaskTypes(_) => "TYPE",
            Self::Jobs => "ID",
            Self::Headers => "NAME=VALUE",
            Self::LocalNames => "NAME",
        }
    }
}

/// Formats the allowed values. The name in parentheses is the cluster setting that changes a limit.
impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = |n: i64| format!("{}", n as f64 / 100.0);
        match *self {
            Self::Integer(low, high) => write!(f, "{low} to {high}"),
            Self::Hundredths(low, high) => write!(f, "{} to {}", hundredths(low), hundredths(high)),
            Self::Text(bytes) => write!(f, "at most {bytes} bytes"),
            Self::Key => write!(f, "at most {} bytes (key_bytes)", ClusterSettings::DEFAULT.key_bytes),
            Self::Duration(low, high) => match setting(high) {
                Some(value) => write!(f, "{low} to {} days ({high})", value.as_secs() / 86_400),
                None => write!(f, "{low} to {high}"),
            },
            Self::Durations(most, low, high) => write!(f, "1 to {most}, each {low} to {high}"),
            Self::Time => f.write_str("at most 3650 days ahead (max_delay), such as 2030-01-01T03:00:00Z"),
            Self::Word(words) => f.write_str(&words.join(", ")),
            Self::TaskType => f.write_str("a task type"),
            Self::TaskTypes(most) => write!(f, "at most {most} task types"),
            Self::Jobs => write!(f, "at most {} ids (batch)", ClusterSettings::DEFAULT.batch),
            Self::Headers => {
                let ClusterSettings { headers, header_bytes, .. } = ClusterSettings::DEFAULT;
                write!(f, "at most {headers} (headers), {header_bytes} bytes together (header_bytes)")
            }
            Self::Tags => write!(f, "at most {} tags, each 1 to {} bytes", Limits::TAGS, Limits::TAG_BYTES),
            Self::LocalNames => write!(f, "at most {} names (batch)", ClusterSettings::DEFAULT.batch),
        }
    }
}

/// Default of the cluster setting with this name; `None` if `name` is a duration such as `30 days`.
fn setting(name: &str) -> Option<Duration> {
    match name {
        "max_delay" => Some(ClusterSettings::DEFAULT.max_delay),
        "max_timeout" => Some(ClusterSettings::DEFAULT.max_timeout),
        _ => None,
    }
}

const fn option(group: OptionGroup, name: &'static str, kind: OptionKind, about: &'static str) -> JobOption {
    JobOption { name, kind, about, group, default: "none", needs: &[], notes: "" }
}

impl JobOption {
    const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn needs(self, needs: &'static [&'static str]) -> Self {
        Self { needs, ..self }
    }

    const fn notes(self, notes: &'static str) -> Self {
        Self { notes, ..self }
    }
}

/// Every option, in the order of the documentation.
pub const OPTIONS: &[JobOption] = {
    use OptionGroup::{Job, Key, Order, Retry, Sequence};
    use OptionKind::{
        Duration, Durations, Headers, Hundredths, Integer, Jobs, Key as ShortText, LocalNames, Tags, TaskType,
        TaskTypes, Text, Time, Word,
    };
    const KINDS: &[&str] = &["exponential", "linear", "fixed", "list"];
    const MODES: &[&str] = &["full", "failures", "without_empty", "none"];
    const POLICIES: &[&str] = &["keep", "replace", "replace_if_newer", "reject", "debounce"];
    &[
        option(Job, "headers", Headers, "Pass this header to the worker"),
        option(Job, "priority", Integer(-1000, 1000), "Set the priority; jobs with a lower number start first")
            .or("0")
            .notes("[can be changed](../concepts/ordering.md#changing-priorities-of-waiting-jobs)"),
        option(Job, "run_at", Time, "Do not start before this time").or("at once").notes("instead of `delay`"),
        option(Job, "delay", Duration("0 s", "max_delay"), "Do not start until this time has passed")
            .or("at once")
            .notes("instead of `run_at`"),
        option(
            Job,
            "max_attempts",
            Integer(1, 1000),
            "Start at most this many attempts; after the last failure the job is dead",
        )
        .or("the type's, else the setting `max_attempts`")
        .notes("0 stands for the default"),
        option(
            Job,
            "timeout",
            Duration("1 ms", "max_timeout"),
            "End an attempt that takes longer than this; it counts as failed",
        )
        .or("the type's, else none"),
        option(Job, "fallback", TaskType, "Move the job to this task type when its attempts are used up")
            .or("the type's, else none")
            .notes("not the job's own type; [Fallback](../concepts/failures.md#fallback)"),
        option(Job, "history", Word(MODES), "Choose whether history keeps the job if it succeeds")
            .or("the type's, else `full`")
            .notes("[History](../concepts/jobs.md#history)"),
        option(Job, "traceparent", Text(200), "Pass this W3C trace context to the worker"),
        option(Job, "tracestate", Text(512), "Pass this W3C trace state to the worker"),
        option(Job, "tags", Tags, "Let the job be found by this tag")
            .notes("a repeated tag counts once; [Tags](../concepts/jobs.md#tags), [Search](../operate/search.md#tags)"),
        option(Retry, "retry_policy.kind", Word(KINDS), "Choose how the delay grows from one failure to the next")
            .or("the type's, else `exponential`")
            .notes("[Retry policies](../concepts/failures.md#retry-policies)"),
        option(
            Retry,
            "retry_policy.initial_delay",
            Duration("0 s", "30 days"),
            "Wait this long after the first failure",
        )
        .or("the type's, else the setting `retry.initial`"),
        option(
            Retry,
            "retry_policy.multiplier",
            Hundredths(100, 10_000),
            "Multiply an exponential delay by this after each failure",
        )
        .or("the type's, else the setting `retry.multiplier`"),
        option(
            Retry,
            "retry_policy.max_delay",
            Duration("0 s", "30 days"),
            "Never wait longer than this, before jitter",
        )
        .or("the type's, else the setting `retry.max`"),
        option(
            Retry,
            "retry_policy.jitter",
            Hundredths(0, 100),
            "Change each delay at random by up to this part of it; 0.1 is ±10 %",
        )
        .or("the type's, else the setting `retry.jitter`"),
        option(
            Retry,
            "retry_policy.delays",
            Durations(100, "0 s", "30 days"),
            "Wait this long after each failure, in turn, with kind list; the last delay repeats",
        )
        .or("the type's")
        .notes("with the kind `list` only"),
        option(Key, "key", ShortText, "Allow one live job of the type with this key")
            .notes("[Keys](../concepts/keys.md)"),
        option(Key, "key_policy", Word(POLICIES), "Choose what happens when another job has the key")
            .or("`keep`")
            .needs(&["key"]),
        option(Key, "key_version", Integer(i64::MIN, i64::MAX), "Set the version that replace_if_newer compares")
            .needs(&["key"])
            .notes("the policy `replace_if_newer` needs it"),
        option(Key, "key_hold", Duration("1 s", "365 days"), "Hold the key this long, even if the job finishes sooner")
            .or("until the job has ended")
            .needs(&["key"]),
        option(
            Key,
            "key_debounce_limit",
            Duration("1 ms", "365 days"),
            "With debounce, start at most this long after the first enqueue",
        )
        .needs(&["key"])
        .notes("with the policy `debounce` only"),
        option(
            Key,
            "on_holder_failure",
            Word(&["supersede", "retry"]),
            "Choose what happens when this job waits for the running job with its key and that one fails",
        )
        .or("`supersede`")
        .needs(&["key"])
        .notes("[Keys](../concepts/keys.md#when-the-holder-fails)"),
        option(Order, "expire_at", Time, "Expire if not started by this time")
            .or("never")
            .notes("instead of `expire_after`; after the start; [Expiry](../concepts/jobs.md#expiry)"),
        option(Order, "expire_after", Duration("1 ms", "max_delay"), "Expire if not started within this time")
            .or("never")
            .notes("instead of `expire_at`; longer than `delay`"),
        option(Order, "limit_key", ShortText, "Count the job by this key in the limits of its task type")
            .notes("[Concurrency and rate limits](../concepts/limits.md)"),
        option(
            Order,
            "limit_max",
            Integer(1, Limits::LIMIT_MAX as i64),
            "Start only while fewer than this many jobs with the limit key run",
        )
        .or("the key's limit, else the type's")
        .needs(&["limit_key"])
        .notes("[A limit of one job](../concepts/limits.md#a-limit-of-one-job)"),
        option(Order, "fair_key", ShortText, "Set the fair key; ready jobs are started evenly between keys")
            .notes("within a priority; [Fair keys](../concepts/ordering.md#fair-keys)"),
        option(Sequence, "next_stages", TaskTypes(100), "Run the next stage as this task type after an ack")
            .notes("one after the other; [Stages](../concepts/stages.md)"),
        option(
            Sequence,
            "stage_payload",
            Word(&["result", "unchanged"]),
            "Choose the payload of the next stage: the last result, or the payload unchanged",
        )
        .or("`result`")
        .needs(&["next_stages"]),
        option(Sequence, "after", Jobs, "Start after this job has succeeded")
            .notes("[Dependencies](../concepts/stages.md#dependencies)"),
        option(
            Sequence,
            "on_dependency_failure",
            Word(&["cancel", "run", "wait"]),
            "Choose what happens when a job that this one runs after does not succeed",
        )
        .or("`cancel`")
        .needs(&["after", "after_local"]),
        option(
            Sequence,
            "parent_id",
            Integer(0, i64::MAX),
            "Record this job as the parent that enqueued it; it has no other effect",
        )
        .notes("shown with the job"),
        option(
            Sequence,
            "local_name",
            ShortText,
            "Name the job inside its request, so that after_local can refer to it",
        )
        .notes("in requests with several jobs"),
        option(Sequence, "after_local", LocalNames, "Start after this job of the same request has succeeded")
            .notes("in requests with several jobs; no cycle"),
    ]
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use howdah_proto::json::fields;

    use super::*;

    #[test]
    fn every_field_of_a_new_job_has_a_row() {
        let rows: BTreeSet<String> = OPTIONS.iter().map(|option| option.name.to_owned()).collect();
        let nested = fields("RetryPolicy").into_iter().map(|field| format!("retry_policy.{field}"));
        let own = fields("NewJob").into_iter();
        let own = own.filter(|field| !matches!(field.as_str(), "task_type" | "payload" | "retry_policy"));
        assert_eq!(rows, own.chain(nested).collect());
        assert_eq!(rows.len(), OPTIONS.len(), "an option has two rows");
    }
}
