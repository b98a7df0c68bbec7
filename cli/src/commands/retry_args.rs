//! Flags for the retry policy of a task type.

use std::time::Duration;

use howdah_client::proto::{RetryPolicy, RetryPolicyKind};

use super::{text, values};

/// Delays between attempts.
#[derive(Debug, Default, clap::Args)]
#[allow(clippy::struct_field_names, reason = "the fields have the names of the flags")]
pub(super) struct RetryArgs {
    /// Growth of the delay: exponential (initial * multiplier^(n-1) after failure n), linear (initial * n), fixed (initial) or
    /// list (--retry-delays)
    #[arg(long, value_name = "KIND", value_parser = ["exponential", "linear", "fixed", "list"])]
    retry_kind: Option<String>,
    /// Wait this long after the first failure, such as 5s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    retry_initial_delay: Option<Duration>,
    /// Exponential: factor between consecutive delays, 1 to 100
    #[arg(long, value_name = "NUMBER")]
    retry_multiplier: Option<f64>,
    /// Exponential, linear: wait at most this long, before jitter, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    retry_max_delay: Option<Duration>,
    /// Random fraction of the delay, 0 to 1; 0.1 means plus or minus 10 %
    #[arg(long, value_name = "NUMBER")]
    retry_jitter: Option<f64>,
    /// Use these delays in order, such as 1s,30s,5m; the last one repeats. Sets the kind to list
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = values::duration)]
    retry_delays: Vec<Duration>,
}

const KINDS: [(&str, RetryPolicyKind); 4] = [
    ("exponential", RetryPolicyKind::Exponential),
    ("linear", RetryPolicyKind::Linear),
    ("fixed", RetryPolicyKind::Fixed),
    ("list", RetryPolicyKind::List),
];

impl RetryArgs {
    /// Applies the flags to a policy. A new kind resets the fields that it does not use. Returns `None` if no field is set.
    pub(super) fn changed(&self, before: Option<RetryPolicy>) -> Option<RetryPolicy> {
        let wire = |time: Option<Duration>| time.and_then(|time| prost_types::Duration::try_from(time).ok());
        let mut policy = before.unwrap_or_default();
        if let Some(kind) = self.kind() {
            policy.kind = kind as i32;
            if kind != RetryPolicyKind::Exponential {
                policy.multiplier = None;
            }
            if matches!(kind, RetryPolicyKind::Fixed | RetryPolicyKind::List) {
                policy.max_delay = None;
            }
            match kind {
                RetryPolicyKind::List => policy.initial_delay = None,
                _ => policy.delays.clear(),
            }
        }
        policy.initial_delay = wire(self.retry_initial_delay).or(policy.initial_delay);
        policy.multiplier = self.retry_multiplier.or(policy.multiplier);
        policy.max_delay = wire(self.retry_max_delay).or(policy.max_delay);
        policy.jitter = self.retry_jitter.or(policy.jitter);
        if !self.retry_delays.is_empty() {
            policy.delays = self.retry_delays.iter().filter_map(|delay| wire(Some(*delay))).collect();
        }
        Some(policy).filter(|policy| *policy != RetryPolicy::default())
    }

    fn kind(&self) -> Option<RetryPolicyKind> {
        let named = KINDS.iter().find(|(name, _)| Some(*name) == self.retry_kind.as_deref()).map(|(_, kind)| *kind);
        named.or((!self.retry_delays.is_empty()).then_some(RetryPolicyKind::List))
    }
}

/// Returns the policy kind as a value of `--retry-kind`; `None` if the kind is unset.
fn kind_word(policy: &RetryPolicy) -> Option<&'static str> {
    KINDS.iter().find(|(_, kind)| *kind == policy.kind()).map(|(word, _)| *word)
}

/// Returns all fields of a retry policy as pairs of flag name and value. The value of an unset field is `None`.
pub(super) fn retry_list(policy: Option<&RetryPolicy>) -> Vec<(&'static str, Option<String>)> {
    let none = RetryPolicy::default();
    let policy = policy.unwrap_or(&none);
    let time = |time: &prost_types::Duration| text::duration(Some(time)).map(howdah_core::config::duration_text);
    let delays: Vec<String> = policy.delays.iter().filter_map(time).collect();
    vec![
        ("retry-kind", kind_word(policy).map(str::to_owned)),
        ("retry-initial-delay", policy.initial_delay.as_ref().and_then(time)),
        ("retry-multiplier", policy.multiplier.map(|number| number.to_string())),
        ("retry-max-delay", policy.max_delay.as_ref().and_then(time)),
        ("retry-jitter", policy.jitter.map(|number| number.to_string())),
        ("retry-delays", (!delays.is_empty()).then(|| delays.join(","))),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn retry_words(policy: &RetryPolicy) -> Vec<String> {
        retry_list(Some(policy)).into_iter().filter_map(|(flag, value)| Some(format!("{flag} {}", value?))).collect()
    }

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        retry: RetryArgs,
    }

    fn changed(flags: &[&str], before: Option<RetryPolicy>) -> Option<RetryPolicy> {
        Command::parse_from(["set"].iter().chain(flags)).retry.changed(before)
    }

    fn words(flags: &[&str]) -> String {
        retry_words(&changed(flags, None).unwrap_or_default()).join(", ")
    }

    #[test]
    fn each_kind_has_its_flags() {
        assert_eq!(words(&[]), "");
        assert_eq!(
            words(&["--retry-kind", "linear", "--retry-initial-delay", "5m", "--retry-max-delay", "1h"]),
            "retry-kind linear, retry-initial-delay 5m, retry-max-delay 1h"
        );
        assert_eq!(
            words(&["--retry-kind", "fixed", "--retry-initial-delay", "30s"]),
            "retry-kind fixed, retry-initial-delay 30s"
        );
        assert_eq!(words(&["--retry-delays", "1s,30s,5m"]), "retry-kind list, retry-delays 1s,30s,5m");
    }

    #[test]
    fn a_new_kind_drops_what_means_nothing_to_it() {
        let before =
            changed(&["--retry-initial-delay", "5s", "--retry-multiplier", "3", "--retry-max-delay", "1h"], None);
        let after =
            |kind| retry_words(&changed(&["--retry-kind", kind], before.clone()).unwrap_or_default()).join(", ");
        assert_eq!(after("linear"), "retry-kind linear, retry-initial-delay 5s, retry-max-delay 1h");
        assert_eq!(after("fixed"), "retry-kind fixed, retry-initial-delay 5s");
        assert_eq!(after("list"), "retry-kind list");
        let list = changed(&["--retry-delays", "1s"], before);
        assert_eq!(retry_words(&changed(&["--retry-kind", "exponential"], list).unwrap()), ["retry-kind exponential"]);
    }
}
