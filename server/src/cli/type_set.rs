//! `howdah type set`: settings of a task type.

use std::time::Duration;

use howdah_client::proto::{HistoryMode, RetryPolicy, TaskTypeSettings};

use super::{context::Global, failure::Failure, json::SettingsJson, output::Output, text};

/// Change settings of a task type
///
/// Only what is given is changed. Holds on every broker within a second, for jobs enqueued
/// (--max-attempts), failing (--retry-*) or succeeding (--history) from then on; what a job says itself wins. The delay
/// after failed attempt n is initial * multiplier^(n-1), at most max, moved at random by up to
/// +-jitter.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type set email.send --max-attempts 3 --retry-initial 30s
  howdah type set email.send --retry-multiplier 1 --retry-jitter 0    # always the same delay
  howdah type set metrics.point --history none                        # succeeded jobs are not kept
  howdah type set email.send --reset                                  # the broker's defaults")]
pub(super) struct Args {
    /// The task type; made if it is new
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Deliveries of a job, at most, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    /// Delay after the first failure, such as 5s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    retry_initial: Option<Duration>,
    /// Growth of the delay from one failure to the next, 1 to 100
    #[arg(long, value_name = "NUMBER")]
    retry_multiplier: Option<f64>,
    /// The longest delay, before jitter, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    retry_max: Option<Duration>,
    /// Part of the delay that is random, 0 to 1: 0.1 is +-10 %
    #[arg(long, value_name = "NUMBER")]
    retry_jitter: Option<f64>,
    /// Which succeeded jobs are kept in history: full (all), failures (those that failed before) or none
    #[arg(long, value_name = "MODE", value_parser = ["full", "failures", "none"])]
    history: Option<String>,
    /// Forget the settings made before: whatever is not given is the broker's default
    #[arg(long)]
    reset: bool,
    /// Print what holds now as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if !args.reset && args.changed(TaskTypeSettings::default()) == TaskTypeSettings::default() {
        return Err(Failure::usage("nothing to set: give --max-attempts, a --retry-* flag, --history, or --reset"));
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
        let wire = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
        let before = settings.retry_policy.unwrap_or_default();
        let retry = RetryPolicy {
            initial_delay: wire(self.retry_initial).or(before.initial_delay),
            multiplier: self.retry_multiplier.or(before.multiplier),
            max_delay: wire(self.retry_max).or(before.max_delay),
            jitter: self.retry_jitter.or(before.jitter),
        };
        settings.retry_policy = Some(retry).filter(|retry| *retry != RetryPolicy::default());
        if let Some(word) = &self.history {
            settings.history = HISTORY.iter().find(|(name, _)| name == word).map_or(0, |(_, mode)| *mode as i32);
        }
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
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
    let retry = settings.and_then(|settings| settings.retry_policy).unwrap_or_default();
    let attempts = settings.map(|settings| settings.max_attempts).filter(|attempts| *attempts > 0);
    let time = |time: Option<prost_types::Duration>| text::duration(time.as_ref()).map(crate::config::words);
    let words = [
        attempts.map(|attempts| format!("max-attempts {attempts}")),
        time(retry.initial_delay).map(|time| format!("retry-initial {time}")),
        retry.multiplier.map(|number| format!("retry-multiplier {number}")),
        time(retry.max_delay).map(|time| format!("retry-max {time}")),
        retry.jitter.map(|number| format!("retry-jitter {number}")),
        settings.and_then(history_word).map(|word| format!("history {word}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

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
            changed(&["--retry-initial", "5s", "--retry-jitter", "0"], before),
            "max-attempts 3, retry-initial 5s, retry-multiplier 1.5, retry-jitter 0"
        );
        assert_eq!(changed(&["--max-attempts", "7"], before), "max-attempts 7, retry-multiplier 1.5");
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
