//! `howdah type set`: settings of a task type.

use howdah_client::proto::{HistoryMode, TaskTypeSettings};

use super::{
    context::Global,
    failure::Failure,
    json::SettingsJson,
    output::Output,
    retry_args::{RetryArgs, retry_words},
};
use crate::logging::escaped;

/// Change settings of a task type
///
/// Only what is given is changed. Holds on every broker within a second, for jobs enqueued
/// (--max-attempts), failing (--retry, --fallback) or succeeding (--history) from then on; what a job says itself
/// wins.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type set email.send --max-attempts 3 --retry-initial 30s
  howdah type set email.send --retry fixed --retry-jitter 0           # always the same delay
  howdah type set email.send --retry-delays 10s,1m,10m,1h             # one after the other
  howdah type set email.send --fallback email.failed                  # for jobs that would be dead
  howdah type set metrics.point --history none                        # succeeded jobs are not kept
  howdah type set email.send --reset                                  # the broker's defaults")]
pub(super) struct Args {
    /// The task type; made if it is new
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Deliveries of a job, at most, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    #[command(flatten)]
    retry: RetryArgs,
    /// Which succeeded jobs are kept in history: full (all), failures (those that failed before) or none
    #[arg(long, value_name = "MODE", value_parser = ["full", "failures", "none"])]
    history: Option<String>,
    /// The task type that takes jobs whose attempts are used up or that failed for good
    #[arg(long, value_name = "TYPE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    fallback: Option<String>,
    /// Such jobs are dead again
    #[arg(long, conflicts_with = "fallback")]
    no_fallback: bool,
    /// Forget the settings made before: whatever is not given is the broker's default
    #[arg(long)]
    reset: bool,
    /// Print what holds now as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let nothing = args.changed(TaskTypeSettings::default()) == TaskTypeSettings::default();
    if nothing && !args.reset && !args.no_fallback {
        let flags = "--max-attempts, --retry or a --retry-* flag, --history, --fallback, or --reset";
        return Err(Failure::usage(format!("nothing to set: give {flags}")));
    }
    global.with_client(async |client| {
        // The call replaces all settings, so those that stay are read first.
        let before = if args.reset { None } else { client.get_task_type(&args.task_type).await? };
        let settings = args.changed(before.and_then(|task_type| task_type.settings).unwrap_or_default());
        let stored = client.update_task_type(&args.task_type, settings).await?;
        let mut output = Output::new();
        if args.json {
            output.json(&SettingsJson::of(Some(&stored)))?;
        } else {
            let words = settings_words(Some(&stored));
            output.line(if words.is_empty() { "the broker's defaults" } else { &words })?;
        }
        output.flush()
    })
}

impl Args {
    /// The settings with those changed that were given.
    fn changed(&self, mut settings: TaskTypeSettings) -> TaskTypeSettings {
        settings.retry_policy = self.retry.changed(settings.retry_policy);
        if let Some(word) = &self.history {
            settings.history = HISTORY.iter().find(|(name, _)| name == word).map_or(0, |(_, mode)| *mode as i32);
        }
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
        if self.no_fallback {
            settings.fallback.clear();
        } else if let Some(fallback) = &self.fallback {
            settings.fallback.clone_from(fallback);
        }
        settings
    }
}

const HISTORY: [(&str, HistoryMode); 3] =
    [("full", HistoryMode::Full), ("failures", HistoryMode::Failures), ("none", HistoryMode::None)];

/// The history mode as the flag takes it; `None`: not set.
pub(super) fn history_word(settings: &TaskTypeSettings) -> Option<&'static str> {
    HISTORY.iter().find(|(_, mode)| *mode == settings.history()).map(|(word, _)| *word)
}

/// What is set, as the flags that set it: `max-attempts 3, retry-initial 30s`.
pub(super) fn settings_words(settings: Option<&TaskTypeSettings>) -> String {
    let Some(settings) = settings else { return String::new() };
    let attempts = Some(settings.max_attempts).filter(|attempts| *attempts > 0);
    let fallback = Some(&settings.fallback).filter(|name| !name.is_empty());
    let first = attempts.map(|attempts| format!("max-attempts {attempts}"));
    let last = [
        history_word(settings).map(|word| format!("history {word}")),
        fallback.map(|name| format!("fallback {}", escaped(name))),
    ];
    let retry = settings.retry_policy.as_ref().map(retry_words).unwrap_or_default();
    first.into_iter().chain(retry).chain(last.into_iter().flatten()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::RetryPolicy;

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
    fn what_is_not_given_stays() {
        let before = TaskTypeSettings {
            max_attempts: 3,
            retry_policy: Some(RetryPolicy { multiplier: Some(1.5), ..RetryPolicy::default() }),
            ..TaskTypeSettings::default()
        };
        assert_eq!(
            changed(&["--retry-initial", "5s", "--retry-jitter", "0"], before.clone()),
            "max-attempts 3, retry-initial 5s, retry-multiplier 1.5, retry-jitter 0"
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
    }

    #[test]
    fn no_policy_is_made_of_nothing() {
        assert_eq!(changed(&[], TaskTypeSettings::default()), "");
    }
}
