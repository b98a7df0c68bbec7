//! Flags for the limits of a task type.

use std::time::Duration;

use howdah_client::proto::{Brake, Rate, TaskTypeSettings};

use super::{text, values};

/// Limits on running jobs and on starts, on all brokers together.
#[derive(Debug, Default, clap::Args)]
pub(super) struct LimitArgs {
    /// Run at most this many jobs of the type at once, on all brokers together, 1 to 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_running: Option<u32>,
    /// Start at most this many jobs of the type per second, more than 0, at most 1000000, such as 10 or 0.5
    #[arg(long, value_name = "NUMBER")]
    rate: Option<f64>,
    /// With --rate: start at most this many jobs immediately after an idle time [default: 1]
    #[arg(long, value_name = "N", requires = "rate", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate_burst: Option<u32>,
    /// Run at most this many jobs of one limit key at once, 1 to 1000000; 1 runs them one after the other, in order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_max_running: Option<u32>,
    /// true: a job that waits for its next attempt keeps its slot, so that no later job overtakes it
    #[arg(long, value_name = "true|false")]
    key_strict_order: Option<bool>,
    /// Leave at least this time from the start of a job of a limit key to the start of the next, such as 2s; 1ms to 30 days
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    key_min_gap: Option<Duration>,
    /// true: --key-min-gap counts from the end of a job, and jobs of a limit key run one at a time
    #[arg(long, value_name = "true|false")]
    key_gap_from_end: Option<bool>,
    /// Start at most this many jobs of one limit key per second, more than 0, at most 1000000
    #[arg(long, value_name = "NUMBER")]
    key_rate: Option<f64>,
    /// With --key-rate: start at most this many jobs of one limit key immediately after an idle time [default: 1]
    #[arg(long, value_name = "N", requires = "key_rate", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_rate_burst: Option<u32>,
    /// Brake: after this many failed attempts in a row, try one job at a time, with pauses in between, until one succeeds, 1 to
    /// 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    brake_failures: Option<u32>,
    /// First pause of the brake, which doubles with each trial, 1ms to 30 days [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    brake_initial_delay: Option<Duration>,
    /// Longest pause of the brake, up to 30 days [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    brake_max_delay: Option<Duration>,
}

impl LimitArgs {
    /// Applies the given flags to the settings.
    pub(super) fn change(&self, settings: &mut TaskTypeSettings) {
        let rate = |per_second: Option<f64>, burst: Option<u32>| {
            per_second.map(|per_second| Rate { per_second, burst: burst.unwrap_or(1) })
        };
        settings.max_running = self.max_running.unwrap_or(settings.max_running);
        settings.rate = rate(self.rate, self.rate_burst).or(settings.rate);
        settings.key_max_running = self.key_max_running.unwrap_or(settings.key_max_running);
        settings.key_strict_order = self.key_strict_order.unwrap_or(settings.key_strict_order);
        settings.key_min_gap = self.key_min_gap.and_then(|gap| gap.try_into().ok()).or(settings.key_min_gap);
        settings.key_gap_from_end = self.key_gap_from_end.unwrap_or(settings.key_gap_from_end);
        settings.key_rate = rate(self.key_rate, self.key_rate_burst).or(settings.key_rate);
        let brake = Brake {
            failures: self.brake_failures.unwrap_or_default(),
            initial_delay: self.brake_initial_delay.and_then(|delay| delay.try_into().ok()),
            max_delay: self.brake_max_delay.and_then(|delay| delay.try_into().ok()),
        };
        if brake != Brake::default() {
            let before = settings.brake.unwrap_or_default();
            settings.brake = Some(Brake {
                failures: if brake.failures == 0 { before.failures } else { brake.failures },
                initial_delay: brake.initial_delay.or(before.initial_delay),
                max_delay: brake.max_delay.or(before.max_delay),
            });
        }
    }
}

/// Limits that `--unset` can reset.
pub(super) const UNSET: [super::type_set::Unset; 8] = [
    ("max-running", |s| s.max_running = 0),
    ("rate", |s| s.rate = None),
    ("key-max-running", |s| {
        s.key_max_running = 0;
        s.key_strict_order = false;
    }),
    ("key-strict-order", |s| s.key_strict_order = false),
    ("key-min-gap", |s| {
        s.key_min_gap = None;
        s.key_gap_from_end = false;
    }),
    ("key-gap-from-end", |s| s.key_gap_from_end = false),
    ("key-rate", |s| s.key_rate = None),
    ("brake", |s| s.brake = None),
];

/// Returns all limits of a task type as pairs of flag name and value. The value of an unset limit is `None`.
pub(super) fn limits_list(settings: &TaskTypeSettings) -> Vec<(&'static str, Option<String>)> {
    let count = |number: u32| Some(number).filter(|number| *number > 0).map(|number| number.to_string());
    let rate = |rate: Option<Rate>| rate.map(|rate| rate.per_second.to_string());
    let burst = |rate: Option<Rate>| rate.map(|rate| rate.burst.to_string());
    let time = |time: Option<&prost_types::Duration>| text::duration(time).map(howdah_core::config::duration_text);
    let brake = settings.brake.unwrap_or_default();
    vec![
        ("max-running", count(settings.max_running)),
        ("rate", rate(settings.rate)),
        ("rate-burst", burst(settings.rate)),
        ("key-max-running", count(settings.key_max_running)),
        ("key-strict-order", settings.key_strict_order.then(|| "true".to_owned())),
        ("key-min-gap", time(settings.key_min_gap.as_ref())),
        ("key-gap-from-end", settings.key_gap_from_end.then(|| "true".to_owned())),
        ("key-rate", rate(settings.key_rate)),
        ("key-rate-burst", burst(settings.key_rate)),
        ("brake-failures", count(brake.failures)),
        ("brake-initial-delay", time(brake.initial_delay.as_ref())),
        ("brake-max-delay", time(brake.max_delay.as_ref())),
    ]
}
