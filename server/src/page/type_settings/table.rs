//! Table of all settings of a task type.

use std::time::Duration;

use howdah_proto::v1::{Brake, RetryPolicy, TaskTypeSettings};

use super::{Defaults, Place, Setting};
use crate::api::enums::WireEnum as _;

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

/// Defines all settings: the name, the label, an example or the choices, the place, and the default.
macro_rules! settings {
    ($($name:literal, $label:literal, $($example:literal)? $(choose $choices:ident)?,
       |$settings:ident| $kind:ident($place:expr), $default:expr;)*) => {
        /// All settings, except the pause, which has its own action.
        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            label: $label,
            example: concat!($($example)?),
            choices: settings!(@ $($choices)?),
            place: |$settings| Place::$kind(&mut $place),
            default: $default,
        }),*];
    };
    (@) => { &[] };
    (@ $choices:ident) => { $choices };
}

settings! {
    "max_attempts", "Attempts", "10", |s| Count(s.max_attempts), |d| (d.config.max_attempts.to_string(), BROKER);
    "retry_kind", "Retries", choose RETRY_KINDS,
        |s| Choice(retry(s).kind), |d| (RETRY_KINDS[d.config.retry.kind.number() as usize - 1].0.into(), BROKER);
    "retry_initial_delay", "First retry delay", "5s",
        |s| Span(retry(s).initial_delay), |d| span(d.config.retry.initial);
    "retry_multiplier", "Growth of the retry delay", "2",
        |s| Factor(retry(s).multiplier), |d| (d.config.retry.multiplier.to_string(), BROKER);
    "retry_max_delay", "Largest retry delay", "1h", |s| Span(retry(s).max_delay), |d| span(d.config.retry.max);
    "retry_jitter", "Jitter of the retry delay", "0.1",
        |s| Factor(retry(s).jitter), |d| (d.config.retry.jitter.to_string(), BROKER);
    "retry_delays", "List of retry delays", "1m, 5m, 1h", |s| Spans(retry(s).delays), NONE;
    "timeout", "Timeout of an attempt", "5m", |s| Span(s.timeout), NONE;
    "fallback", "Fallback type", "", |s| Name(s.fallback), NONE;
    "max_running", "Concurrent jobs", "20", |s| Count(s.max_running), NO_LIMIT;
    "rate", "Rate: starts per second", "10", |s| PerSecond(s.rate.get_or_insert_default().per_second), NO_LIMIT;
    "rate_burst", "Rate: burst", "10", |s| Count(s.rate.get_or_insert_default().burst), NONE;
    "key_max_running", "Concurrent jobs per limit key", "1", |s| Count(s.key_max_running), NO_LIMIT;
    "key_strict_order", "Strict order in a limit key", choose YES,
        |s| Flag(s.key_strict_order), |_| ("no".into(), BUILT_IN);
    "key_min_gap", "Gap between jobs of a limit key", "1s", |s| Span(s.key_min_gap), NONE;
    "key_gap_from_end", "Gap counts from the end of a job", choose YES,
        |s| Flag(s.key_gap_from_end), |_| ("no".into(), BUILT_IN);
    "key_rate", "Rate of a limit key: starts per second", "10",
        |s| PerSecond(s.key_rate.get_or_insert_default().per_second), NO_LIMIT;
    "key_rate_burst", "Rate of a limit key: burst", "10", |s| Count(s.key_rate.get_or_insert_default().burst), NONE;
    "brake_failures", "Brake: after failures in a row", "20",
        |s| Count(brake(s).failures), |_| ("no brake".into(), BUILT_IN);
    "brake_initial_delay", "Brake: first pause", "1s", |s| Span(brake(s).initial_delay), |_| ("1s".into(), BUILT_IN);
    "brake_max_delay", "Brake: longest pause", "1m", |s| Span(brake(s).max_delay), |_| ("1m".into(), BUILT_IN);
    "priority_step", "Ageing by one priority", "10m",
        |s| Span(s.priority_step), |_| ("never: priority is strict".into(), BUILT_IN);
    "max_payload_bytes", "Largest payload, in bytes", "65536",
        |s| Large(s.max_payload_bytes), |d| (d.payload_bytes.to_string(), CLUSTER);
    "max_backlog", "Largest backlog", "100000", |s| Large(s.max_backlog), NO_LIMIT;
    "history", "History keeps", choose HISTORY_MODES, |s| Choice(s.history), |_| (HISTORY_MODES[0].0.into(), BUILT_IN);
    "history_days", "Days of history", "30", |s| Count(s.history_days), |d| (d.config.history_days.to_string(), BROKER);
    "dead_days", "Days of dead jobs", "30",
        |s| Count(s.dead_days), |d| (if d.dead_days == 0 { "no limit".into() } else { d.dead_days.to_string() }, CLUSTER);
}
