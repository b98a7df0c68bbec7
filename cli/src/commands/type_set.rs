//! `howdah type set`: changes settings of a task type.

use std::time::Duration;

use howdah_client::proto::{HistoryMode, TaskTypeSettings};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    limit_args::{self, LimitArgs, limits_list},
    output::Output,
    retry_args::{RetryArgs, retry_list},
    text, values,
};

/// Change settings of a task type
///
/// Changes only the given settings. They take effect on every broker within a second. Settings apply to later events: enqueues
/// (--max-attempts, --timeout, --max-payload-bytes, --max-backlog), failures (--retry-*, --fallback) and successes (--history).
/// --priority-step and --paused apply to all jobs that wait for a worker. Options of a job override these settings.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type set email.send --max-attempts 3 --retry-initial-delay 30s
  howdah type set email.send --retry-kind fixed --retry-jitter 0           # always the same delay
  howdah type set email.send --retry-delays 10s,1m,10m,1h             # in this order
  howdah type set email.send --fallback email.failed                  # for jobs that would be dead
  howdah type set metrics.point --history none                        # succeeded jobs are not kept
  howdah type set report --priority-step 1m       # a minute of waiting equals one priority level
  howdah type set email.send --paused true         # workers get no jobs until --paused false
  howdah type set email.send --max-backlog 10000 --timeout 30s
  howdah type set email.send --brake-failures 20          # after 20 failures in a row, try one job at a time
  howdah type set email.send --unset timeout --unset retry
  howdah type set email.send --reset                                  # the broker's defaults")]
pub(super) struct Args {
    /// Task type to change; created if it does not exist
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Deliver a job at most this many times, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    #[command(flatten)]
    retry: RetryArgs,
    /// Succeeded jobs to keep in history: full (all), failures (only with a failed attempt), without_empty (only with a failed
    /// attempt or a result) or none
    #[arg(long, value_name = "MODE", value_parser = HISTORY.map(|(word, _)| word))]
    history: Option<String>,
    /// Keep finished jobs for this many days, 1 to 3650
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    history_days: Option<u32>,
    /// Discard dead jobs after this many days, 1 to 3650 [default: dead_days of the cluster (howdah settings)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    dead_days: Option<u32>,
    /// Ageing: a job that has waited this much longer runs before a job whose priority number is lower by one, such as 1m; 1ms to
    /// about 407 days
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    priority_step: Option<Duration>,
    /// Timeout of an attempt, for jobs without their own timeout, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// true: deliver no jobs; false: deliver them again
    #[arg(long, value_name = "true|false")]
    paused: Option<bool>,
    /// Refuse larger payloads, in bytes; at most the cluster's limit (howdah settings)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(i64).range(1..))]
    max_payload_bytes: Option<i64>,
    /// Refuse enqueues while this many jobs are ready or waiting, 1 to 10000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000_000))]
    max_backlog: Option<i64>,
    /// Move jobs that are out of attempts or failed for good to this task type
    #[arg(long, value_name = "TYPE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    fallback: Option<String>,
    /// Remove the fallback, so that jobs that are out of attempts or failed for good are dead
    #[arg(long, conflicts_with = "fallback")]
    no_fallback: bool,
    #[command(flatten)]
    limits: LimitArgs,
    /// Reset this setting to the broker's default; repeatable
    #[arg(long, value_name = "SETTING", value_parser = unset_words())]
    unset: Vec<String>,
    /// Reset all other settings to the broker's defaults
    #[arg(long)]
    reset: bool,
    /// Print the settings as one JSON object: the message TaskTypeSettings
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if !args.reset && !args.says_anything() {
        return Err(Failure::usage("nothing to set: give a setting, --unset or --reset; --help lists the settings"));
    }
    global.with_client(async |client| {
        // `update_task_type` replaces all settings, so the current ones are read first.
        let before = if args.reset { None } else { client.get_task_type(&args.task_type).await? };
        let settings = args.changed(before.and_then(|task_type| task_type.settings).unwrap_or_default());
        let stored = client.update_task_type(&args.task_type, settings).await?;
        let mut output = Output::new();
        if args.json {
            output.message("TaskTypeSettings", &stored)?;
        } else {
            let words = settings_words(Some(&stored));
            output.line(if words.is_empty() { "the broker's defaults" } else { &words })?;
        }
        output.flush()
    })
}

impl Args {
    fn says_anything(&self) -> bool {
        let nothing = TaskTypeSettings::default();
        self.changed(nothing.clone()) != nothing || self.paused.is_some() || self.no_fallback || !self.unset.is_empty()
    }

    /// Applies the given flags to the settings.
    fn changed(&self, mut settings: TaskTypeSettings) -> TaskTypeSettings {
        for (_, unset) in
            UNSET.iter().chain(&limit_args::UNSET).filter(|(word, _)| self.unset.iter().any(|given| given == word))
        {
            unset(&mut settings);
        }
        let wire = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
        settings.retry_policy = self.retry.changed(settings.retry_policy);
        if let Some(word) = &self.history {
            settings.history = HISTORY.iter().find(|(name, _)| name == word).map_or(0, |(_, mode)| *mode as i32);
        }
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
        settings.history_days = self.history_days.unwrap_or(settings.history_days);
        settings.dead_days = self.dead_days.unwrap_or(settings.dead_days);
        settings.priority_step = wire(self.priority_step).or(settings.priority_step);
        settings.timeout = wire(self.timeout).or(settings.timeout);
        settings.paused = self.paused.unwrap_or(settings.paused);
        settings.max_payload_bytes = self.max_payload_bytes.unwrap_or(settings.max_payload_bytes);
        settings.max_backlog = self.max_backlog.unwrap_or(settings.max_backlog);
        self.limits.change(&mut settings);
        if self.no_fallback {
            settings.fallback.clear();
        } else if let Some(fallback) = &self.fallback {
            settings.fallback.clone_from(fallback);
        }
        settings
    }
}

const HISTORY: [(&str, HistoryMode); 4] = [
    ("full", HistoryMode::Full),
    ("failures", HistoryMode::Failures),
    ("without_empty", HistoryMode::WithoutEmpty),
    ("none", HistoryMode::None),
];

/// Setting that `--unset` resets: its name, and the function that resets it.
pub(super) type Unset = (&'static str, fn(&mut TaskTypeSettings));
const UNSET: [Unset; 11] = [
    ("max-attempts", |s| s.max_attempts = 0),
    ("retry", |s| s.retry_policy = None),
    ("history", |s| s.history = 0),
    ("history-days", |s| s.history_days = 0),
    ("dead-days", |s| s.dead_days = 0),
    ("priority-step", |s| s.priority_step = None),
    ("timeout", |s| s.timeout = None),
    ("paused", |s| s.paused = false),
    ("max-payload-bytes", |s| s.max_payload_bytes = 0),
    ("max-backlog", |s| s.max_backlog = 0),
    ("fallback", |s| s.fallback.clear()),
];

/// Values of `--unset`.
fn unset_words() -> Vec<&'static str> {
    UNSET.iter().chain(&limit_args::UNSET).map(|(word, _)| *word).collect()
}

/// Returns the history mode as a value of `--history`; `None` if the mode is unset.
pub(super) fn history_word(of: HistoryMode) -> Option<&'static str> {
    HISTORY.iter().find(|(_, mode)| *mode == of).map(|(word, _)| *word)
}

/// Returns all settings of a task type as pairs of flag name and value. The value of an unset setting is `None`.
pub(super) fn settings_list(settings: &TaskTypeSettings) -> Vec<(&'static str, Option<String>)> {
    let time =
        |time: Option<prost_types::Duration>| text::duration(time.as_ref()).map(howdah_core::config::duration_text);
    let count = |number: i64| Some(number).filter(|number| *number > 0).map(|number| number.to_string());
    let mut list = vec![("max-attempts", count(settings.max_attempts.into()))];
    list.extend(retry_list(settings.retry_policy.as_ref()));
    list.extend([
        ("history", history_word(settings.history()).map(str::to_owned)),
        ("history-days", count(settings.history_days.into())),
        ("dead-days", count(settings.dead_days.into())),
        ("priority-step", time(settings.priority_step)),
        ("timeout", time(settings.timeout)),
        ("paused", settings.paused.then(|| "true".to_owned())),
        ("max-payload-bytes", count(settings.max_payload_bytes)),
        ("max-backlog", count(settings.max_backlog)),
        ("fallback", Some(&settings.fallback).filter(|name| !name.is_empty()).map(|name| escaped(name).to_string())),
    ]);
    list.extend(limits_list(settings));
    list
}

/// Formats the settings that are set, such as `max-attempts 3, retry-initial-delay 30s`.
pub(super) fn settings_words(settings: Option<&TaskTypeSettings>) -> String {
    let all = settings.map(settings_list).unwrap_or_default();
    let words = all.into_iter().filter_map(|(flag, value)| Some(format!("{flag} {}", value?)));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::{Brake, Rate, RetryPolicy};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn changed(flags: &[&str], before: TaskTypeSettings) -> String {
        let command = Command::parse_from(["set", "a"].iter().chain(flags));
        settings_words(Some(&command.args.changed(before)))
    }

    #[test]
    fn settings_of_a_task_type_without_a_flag_stay_unchanged() {
        let before = TaskTypeSettings {
            max_attempts: 3,
            retry_policy: Some(RetryPolicy { multiplier: Some(1.5), ..RetryPolicy::default() }),
            ..TaskTypeSettings::default()
        };
        assert_eq!(
            changed(&["--retry-initial-delay", "5s", "--retry-jitter", "0"], before.clone()),
            "max-attempts 3, retry-initial-delay 5s, retry-multiplier 1.5, retry-jitter 0"
        );
        assert_eq!(changed(&["--max-attempts", "7"], before), "max-attempts 7, retry-multiplier 1.5");
        let fallback = changed(&["--fallback", "b"], TaskTypeSettings::default());
        assert_eq!(fallback, "fallback b");
        let before = TaskTypeSettings { fallback: "b".into(), ..TaskTypeSettings::default() };
        assert_eq!(changed(&["--no-fallback"], before), "");
        assert_eq!(
            changed(&["--history", "none", "--max-attempts", "1"], TaskTypeSettings::default()),
            "max-attempts 1, history none"
        );
        let all = "--history without_empty --history-days 3 --priority-step 1m --timeout 30s --paused true \
                   --max-payload-bytes 10 --max-backlog 5";
        let all: Vec<&str> = all.split_whitespace().collect();
        assert_eq!(
            changed(&all, TaskTypeSettings::default()),
            "history without_empty, history-days 3, priority-step 1m, timeout 30s, paused true, max-payload-bytes 10, \
             max-backlog 5"
        );
    }

    #[test]
    fn each_setting_can_be_unset() {
        let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
        let set = TaskTypeSettings {
            max_attempts: 3,
            retry_policy: Some(RetryPolicy { multiplier: Some(1.5), ..RetryPolicy::default() }),
            history: 1,
            history_days: 3,
            dead_days: 3,
            priority_step: second,
            timeout: second,
            paused: true,
            max_payload_bytes: 1,
            max_backlog: 1,
            fallback: "b".into(),
            max_running: 1,
            rate: Some(Rate { per_second: 1.0, burst: 2 }),
            key_max_running: 1,
            key_strict_order: true,
            key_min_gap: second,
            key_gap_from_end: true,
            key_rate: Some(Rate { per_second: 0.5, burst: 1 }),
            brake: Some(Brake { failures: 1, initial_delay: second, max_delay: second }),
        };
        assert_eq!(
            changed(&["--paused", "false", "--unset", "max-backlog", "--max-attempts", "4"], set.clone())
                .matches(',')
                .count(),
            20
        );
        let all: Vec<&str> = unset_words().into_iter().flat_map(|word| ["--unset", word]).collect();
        assert_eq!(changed(&all, set), "");
    }

    #[test]
    fn without_retry_flags_no_retry_policy_is_set() {
        assert_eq!(changed(&[], TaskTypeSettings::default()), "");
    }
}
