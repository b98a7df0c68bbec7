//! Plots of the last hour by minute, over all task types: throughput, error rate and wait time.

use std::time::{SystemTime, UNIX_EPOCH};

use howdah_core::job::Stats;
use jiff::Timestamp;

use crate::page::{
    plot::Plot,
    words::{number, short_span},
};

/// Number of minutes in a plot. The last minute is still in progress.
const MINUTES: u64 = 60;
/// Length of a minute in seconds.
const MINUTE: u64 = 60;

/// Returns the start of the first minute of the plots.
pub(super) fn first_minute(now: SystemTime) -> SystemTime {
    let minute = seconds(now) / MINUTE;
    UNIX_EPOCH + std::time::Duration::from_secs(minute.saturating_sub(MINUTES - 1) * MINUTE)
}

/// Draws statistics by minute. Returns no plots if no attempt has ended and no job was enqueued.
pub(super) fn plots(all: &[(SystemTime, Stats)], first: SystemTime) -> Vec<Plot> {
    let mut minutes: Vec<Stats> = vec![Stats::default(); MINUTES as usize];
    let mut hour = Stats::default();
    for (starts, stats) in all {
        let slot = seconds(*starts).saturating_sub(seconds(first)) / MINUTE;
        // Leaves out a minute that began after the first minute was computed, because the plots end before it.
        if let Some(minute) = minutes.get_mut(slot as usize) {
            minute.add_events(stats);
            hour.add_events(stats);
        }
    }
    if hour.enqueued + attempts(&hour) == 0 {
        return Vec::new();
    }
    let ends = (clock(seconds(first)), format!("{} UTC", clock(seconds(first) + (MINUTES - 1) * MINUTE)));
    let counts = |of: fn(&Stats) -> i64| minutes.iter().map(|minute| of(minute) as f64).collect();
    let throughput = Plot::bars(
        "Throughput",
        vec![("succeeded", "succeeded", counts(|m| m.succeeded)), ("dead", "dead", counts(|m| m.dead))],
        &ends,
        |n| format!("{}/min", number(n as i64)),
    );
    let error_rate = Plot::bars(
        "Error rate",
        vec![(
            "dead",
            "failed attempts",
            minutes.iter().map(|minute| error_rate(minute).unwrap_or_default()).collect(),
        )],
        &ends,
        percent,
    );
    let wait = |stats: &Stats, part| stats.wait.percentile(part).map(|time| time.as_secs_f64());
    let line = |part| minutes.iter().map(|minute| wait(minute, part)).collect();
    let wait_time =
        Plot::lines("Wait time", vec![("half", "p50", line(0.5)), ("tail", "p95", line(0.95))], &ends, short_span);
    vec![
        throughput.with_figure(per_minute((hour.succeeded + hour.dead) as f64 / MINUTES as f64)),
        error_rate.with_figure(self::error_rate(&hour).map(percent).unwrap_or_default()),
        wait_time.with_figure(wait(&hour, 0.95).map(|p95| format!("p95 {}", short_span(p95))).unwrap_or_default()),
    ]
}

fn attempts(stats: &Stats) -> i64 {
    stats.succeeded + stats.failed
}

/// Share of the attempts that failed, in percent; `None` without attempts.
fn error_rate(stats: &Stats) -> Option<f64> {
    (attempts(stats) > 0).then(|| stats.failed as f64 * 100.0 / attempts(stats) as f64)
}

fn percent(value: f64) -> String {
    match value {
        0.0 => "0 %".into(),
        10.0.. => format!("{value:.0} %"),
        _ => format!("{value:.1} %"),
    }
}

fn per_minute(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}/min") } else { format!("{}/min", number(value.round() as i64)) }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn clock(second: u64) -> String {
    let at = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
    at.map(|at| at.strftime("%H:%M").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use askama::Template as _;

    use super::*;
    use howdah_core::job::DurationStats;

    #[test]
    fn the_figures_are_of_the_whole_hour_and_the_bars_of_its_minutes() {
        let first = first_minute(UNIX_EPOCH + Duration::from_secs(100_000));
        assert_eq!(seconds(first), 99_960 - 59 * 60);
        let wait = |bucket, attempts| DurationStats { sum_us: 0.0, buckets: vec![(bucket, attempts)] };
        let at = |minute: u64| first + Duration::from_secs(minute * 60);
        let all = [
            (at(0), Stats { succeeded: 894, failed: 6, wait: wait(40, 900), ..Stats::default() }),
            (at(59), Stats { succeeded: 6, failed: 94, dead: 60, wait: wait(80, 100), ..Stats::default() }),
            (at(60), Stats { succeeded: 1_000_000, ..Stats::default() }),
        ];
        let shown: Vec<String> = plots(&all, first).iter().map(|plot| plot.render().unwrap()).collect();
        assert_eq!(shown.len(), 3);
        for (plot, texts) in shown.iter().zip([
            ["16/min", "894/min", "02:47"],
            ["10 %", "94 %", "03:46 UTC"],
            ["p95 962ms", ">p50<", ">p95<"],
        ]) {
            assert!(texts.iter().all(|text| plot.contains(text)), "{texts:?} in {plot}");
        }
    }

    #[test]
    fn an_hour_without_events_has_no_plots() {
        let now = SystemTime::now();
        assert!(plots(&[(now, Stats::default())], first_minute(now)).is_empty());
    }
}
