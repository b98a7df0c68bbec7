//! Table of all settings of a task type.

use std::time::Duration;

use howdah_core::job::RetryKind;
use howdah_proto::v1::{Brake, RetryPolicy, RetryPolicyKind, TaskTypeSettings};

use super::{Defaults, Place, Setting};

const BUILT_IN: &str = "built in";
const BROKER: &str = "broker setting";
const CLUSTER: &str = "cluster setting";

const RETRY_KINDS: &[(&str, &str)] =
    &[("exponential", "exponential"), ("linear", "linear"), ("fixed", "fixed"), ("list", "list")];
const HISTORY_MODES: &[(&str, &str)] = &[
    ("full", "all jobs"),
    ("failures", "jobs with a failed attempt"),
    ("none", "no succeeded jobs"),
    ("without_empty", "jobs with a result or a failed attempt"),
];
const YES: &[(&str, &str)] = &[("yes", "yes")];

type Make = fn(&mut TaskTypeSettings) -> Place<'_>;
type Applies = fn(&Defaults<'_>) -> (String, &'static str);

const NONE: Applies = |_| ("none".into(), BUILT_IN);
const NO_LIMIT: Applies = |_| ("no limit".into(), BUILT_IN);

fn retry(settings: &mut TaskTypeSettings) -> &mut RetryPolicy {
    settings.retry_policy.get_or_insert_default()
}

fn brake(settings: &mut TaskTypeSettings) -> &mut Brake {
    settings.brake.get_or_insert_default()
}

fn span(span: Duration) -> (String, &'static str) {
    (humantime::format_duration(span).to_string(), BROKER)
}

pub(super) fn kind_of(kind: RetryKind) -> RetryPolicyKind {
    match kind {
        RetryKind::Exponential => RetryPolicyKind::Exponential,
        RetryKind::Linear => RetryPolicyKind::Linear,
        RetryKind::Fixed => RetryPolicyKind::Fixed,
        RetryKind::List => RetryPolicyKind::List,
    }
}

const fn text(
    name: &'static str,
    label: &'static str,
    example: &'static str,
    place: Make,
    default: Applies,
) -> Setting {
    Setting { name, label, example, choices: &[], place, default }
}

const fn choice(
    name: &'static str,
    label: &'static str,
    choices: &'static [(&'static str, &'static str)],
    place: Make,
    default: Applies,
) -> Setting {
    Setting { name, label, example: "", choices, place, default }
}

/// All settings, except the pause, which has its own action.
pub(super) const SETTINGS: [Setting; 27] = [
    text(
        "max_attempts",
        "Attempts",
        "10",
        |s| Place::Count(&mut s.max_attempts),
        |d| (d.config.max_attempts.to_string(), BROKER),
    ),
    choice(
        "retry_kind",
        "Retries",
        RETRY_KINDS,
        |s| Place::Choice(&mut retry(s).kind),
        |d| (RETRY_KINDS[kind_of(d.config.retry.kind) as usize - 1].0.into(), BROKER),
    ),
    text(
        "retry_initial_delay",
        "First retry delay",
        "5s",
        |s| Place::Span(&mut retry(s).initial_delay),
        |d| span(d.config.retry.initial),
    ),
    text(
        "retry_multiplier",
        "Growth of the retry delay",
        "2",
        |s| Place::Factor(&mut retry(s).multiplier),
        |d| (d.config.retry.multiplier.to_string(), BROKER),
    ),
    text(
        "retry_max_delay",
        "Largest retry delay",
        "1h",
        |s| Place::Span(&mut retry(s).max_delay),
        |d| span(d.config.retry.max),
    ),
    text(
        "retry_jitter",
        "Jitter of the retry delay",
        "0.1",
        |s| Place::Factor(&mut retry(s).jitter),
        |d| (d.config.retry.jitter.to_string(), BROKER),
    ),
    text("retry_delays", "List of retry delays", "1m, 5m, 1h", |s| Place::Spans(&mut retry(s).delays), NONE),
    text("timeout", "Timeout of an attempt", "5m", |s| Place::Span(&mut s.timeout), NONE),
    text("fallback", "Fallback type", "", |s| Place::Name(&mut s.fallback), NONE),
    text("max_running", "Concurrent jobs", "20", |s| Place::Count(&mut s.max_running), NO_LIMIT),
    text(
        "rate",
        "Rate: starts per second",
        "10",
        |s| Place::PerSecond(&mut s.rate.get_or_insert_default().per_second),
        NO_LIMIT,
    ),
    text("rate_burst", "Rate: burst", "10", |s| Place::Count(&mut s.rate.get_or_insert_default().burst), NONE),
    text("key_max_running", "Concurrent jobs per limit key", "1", |s| Place::Count(&mut s.key_max_running), NO_LIMIT),
    choice(
        "key_strict_order",
        "Strict order in a limit key",
        YES,
        |s| Place::Flag(&mut s.key_strict_order),
        |_| ("no".into(), BUILT_IN),
    ),
    text("key_min_gap", "Gap between jobs of a limit key", "1s", |s| Place::Span(&mut s.key_min_gap), NONE),
    choice(
        "key_gap_from_end",
        "Gap counts from the end of a job",
        YES,
        |s| Place::Flag(&mut s.key_gap_from_end),
        |_| ("no".into(), BUILT_IN),
    ),
    text(
        "key_rate",
        "Rate of a limit key: starts per second",
        "10",
        |s| Place::PerSecond(&mut s.key_rate.get_or_insert_default().per_second),
        NO_LIMIT,
    ),
    text(
        "key_rate_burst",
        "Rate of a limit key: burst",
        "10",
        |s| Place::Count(&mut s.key_rate.get_or_insert_default().burst),
        NONE,
    ),
    text(
        "brake_failures",
        "Brake: after failures in a row",
        "20",
        |s| Place::Count(&mut brake(s).failures),
        |_| ("no brake".into(), BUILT_IN),
    ),
    text(
        "brake_initial_delay",
        "Brake: first pause",
        "1s",
        |s| Place::Span(&mut brake(s).initial_delay),
        |_| ("1s".into(), BUILT_IN),
    ),
    text(
        "brake_max_delay",
        "Brake: longest pause",
        "1m",
        |s| Place::Span(&mut brake(s).max_delay),
        |_| ("1m".into(), BUILT_IN),
    ),
    text(
        "priority_step",
        "Ageing by one priority",
        "10m",
        |s| Place::Span(&mut s.priority_step),
        |_| ("never: priority is strict".into(), BUILT_IN),
    ),
    text(
        "max_payload_bytes",
        "Largest payload, in bytes",
        "65536",
        |s| Place::Large(&mut s.max_payload_bytes),
        |d| (d.payload_bytes.to_string(), CLUSTER),
    ),
    text("max_backlog", "Largest backlog", "100000", |s| Place::Large(&mut s.max_backlog), NO_LIMIT),
    choice(
        "history",
        "History keeps",
        HISTORY_MODES,
        |s| Place::Choice(&mut s.history),
        |_| (HISTORY_MODES[0].0.into(), BUILT_IN),
    ),
    text(
        "history_days",
        "Days of history",
        "30",
        |s| Place::Count(&mut s.history_days),
        |d| (d.config.history_days.to_string(), BROKER),
    ),
    text(
        "dead_days",
        "Days of dead jobs",
        "30",
        |s| Place::Count(&mut s.dead_days),
        |d| (if d.dead_days == 0 { "no limit".into() } else { d.dead_days.to_string() }, CLUSTER),
    ),
];
