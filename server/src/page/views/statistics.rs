//! Statistics of one task type with plots and a table, or totals of all task types.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use howdah_core::error::Error;
use howdah_proto::v1::{self, StatsPeriod};
use jiff::Timestamp;

use crate::{
    api::verbs::GetStats,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        plot::Plot,
        words::{When, number, short_span, span},
    },
};

/// Maximum number of task types in the list of totals. It is small, because the percentiles of a type are computed from
/// all of its periods.
const TYPES: i32 = 25;

/// A selectable time range: value of the form field, label, length in seconds, period of the statistics, and length of
/// the period in seconds.
type Span = (&'static str, &'static str, u64, StatsPeriod, u64);
const SPANS: [Span; 4] = [
    ("2h", "2 hours", 7_200, StatsPeriod::Minute, 60),
    ("24h", "24 hours", 86_400, StatsPeriod::Hour, 3_600),
    ("7d", "7 days", 604_800, StatsPeriod::Hour, 3_600),
    ("90d", "90 days", 7_776_000, StatsPeriod::Day, 86_400),
];
const DAY: u64 = 86_400;
/// Longest gap between two backlog samples, in seconds, that a plot fills with the earlier sample.
const MOST_GAP: u64 = 600;
/// Index of the default time range in `SPANS`.
const FIRST: usize = 1;

#[derive(Template)]
#[template(path = "statistics.html")]
struct View {
    layout: Layout,
    task_type: String,
    /// Selectable time ranges.
    spans: [(&'static str, &'static str); SPANS.len()],
    over: &'static str,
    plots: Vec<Plot>,
    rows: Vec<Row>,
    /// Whether the task type does not exist.
    unknown: bool,
    /// Whether there are more task types than the list shows.
    cut: bool,
    complete: Option<When>,
}

/// Row of the table: one period of a task type, or the totals of a task type.
struct Row {
    name: String,
    counts: [String; 4],
    /// Highest number of ready jobs during the period.
    ready: String,
    /// Wait times and run times: each with mean, p50, p90, p99 and sum.
    times: [[String; 5]; 2],
}

/// Renders the statistics of one task type, or the totals of all types.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let (over, _, length, period, step) = chosen(req.params.get("over"))?;
    let layout = req.layout("statistics");
    let now = Timestamp::now().as_second();
    let first = (now - length as i64).div_euclid(step as i64) * step as i64;
    let mut answer = v1::GetStatsResponse::default();
    // The totals of a range longer than a day are computed from days, because these are fewer rows than hours.
    let whole_days = task_type.is_empty() && length > DAY;
    let period = if whole_days { StatsPeriod::Day } else { period };
    // Totals require the right to read every type. Other users choose one type.
    if !task_type.is_empty() || layout.reads_all {
        let request = v1::GetStatsRequest {
            task_type: task_type.clone(),
            period: period.into(),
            since: Some(prost_types::Timestamp { seconds: first, nanos: 0 }),
            until: None,
            limit: TYPES,
        };
        answer = req.calls().call::<GetStats>(&req.by, request).await?.into_inner();
    }
    let slots = ((now - first).unsigned_abs() / step + 1) as usize;
    let of_type = !task_type.is_empty() && !answer.stats.is_empty();
    let mut rows: Vec<Row> = answer.stats.iter().map(|stats| row(stats, task_type.is_empty(), step)).collect();
    if of_type {
        // Newest first.
        rows.reverse();
    }
    let view = View {
        plots: if of_type { plots(&answer.stats, slots, first, step) } else { Vec::new() },
        unknown: rows.is_empty() && req.is_unknown(&task_type).await,
        cut: task_type.is_empty() && rows.len() == TYPES as usize,
        complete: When::new(answer.complete_time),
        spans: SPANS.map(|(word, name, ..)| (word, name)),
        layout,
        task_type,
        over,
        rows,
    };
    render(&view)
}

/// Returns the time range with this value of the form field.
fn chosen(word: &str) -> Result<Span, Error> {
    if word.is_empty() {
        return Ok(SPANS[FIRST]);
    }
    let words = || SPANS.map(|(word, ..)| word).join(", ");
    let found = SPANS.into_iter().find(|(known, ..)| *known == word);
    found.ok_or_else(|| Error::invalid("over", format!("must be one of {}", words())))
}

fn row(stats: &v1::Stats, is_total: bool, step: u64) -> Row {
    let counts = [stats.enqueued_count, stats.succeeded_count, stats.failed_count, stats.dead_count];
    Row {
        name: if is_total { stats.task_type.clone() } else { start(stats.start_time.map_or(0, |at| at.seconds), step) },
        counts: counts.map(number),
        ready: stats.backlog.map(|backlog| number(backlog.ready)).unwrap_or_default(),
        times: [stats.wait, stats.run].map(|all| times(all.unwrap_or_default())),
    }
}

fn times(all: v1::DurationStats) -> [String; 5] {
    let sum = Some(all.sum_seconds).filter(|_| all.count > 0);
    let [mean, p50, p90, p99] = [all.mean, all.p50, all.p90, all.p99].map(seconds);
    [mean, p50, p90, p99, sum].map(|time| time.map(short_span).unwrap_or_default())
}

/// Formats the start of a period.
fn start(second: i64, step: u64) -> String {
    let format = if step >= 86_400 { "%Y-%m-%d" } else { "%Y-%m-%d %H:%M" };
    Timestamp::from_second(second).map(|at| at.strftime(format).to_string()).unwrap_or_default()
}

fn seconds(time: Option<prost_types::Duration>) -> Option<f64> {
    Duration::try_from(time?).ok().map(|time| time.as_secs_f64())
}

fn plots(all: &[v1::Stats], slots: usize, first: i64, step: u64) -> Vec<Plot> {
    let mut by_slot: Vec<Option<&v1::Stats>> = vec![None; slots];
    for stats in all {
        let at = stats.start_time.map_or(0, |at| at.seconds) - first;
        let slot = usize::try_from(at.div_euclid(step as i64)).ok().and_then(|slot| by_slot.get_mut(slot));
        // Ignores a period that began after this request read the clock, because the plot ends before the period.
        if let Some(slot) = slot {
            *slot = Some(stats);
        }
    }
    let counts = |of: fn(&v1::Stats) -> i64| by_slot.iter().map(|s| s.map_or(0.0, |s| of(s) as f64)).collect();
    let times = |of: fn(&v1::Stats) -> Option<prost_types::Duration>| {
        by_slot.iter().map(|s| s.and_then(|s| seconds(of(s)))).collect()
    };
    let last = first + ((slots as u64 - 1) * step) as i64;
    let ends = (start(first, step), format!("{} UTC", start(last, step)));
    let a_period = span(Duration::from_secs(step));
    let per_period = |n: f64| format!("{} in {a_period}", number(n as i64));
    let backlog = filled(&by_slot, (MOST_GAP / step) as usize);
    let there = |of: fn(&v1::TaskTypeCounts) -> i64| backlog.iter().map(|b| b.map_or(0.0, |b| of(&b) as f64)).collect();
    vec![
        Plot::bars(
            "Backlog: maximum per period",
            vec![
                ("ready", "ready", there(|b| b.ready)),
                ("waiting", "waiting", there(|b| b.waiting)),
                ("scheduled", "scheduled", there(|b| b.scheduled)),
                ("dead", "dead", there(|b| b.dead)),
            ],
            &ends,
            |n| format!("{} jobs", number(n as i64)),
        ),
        Plot::bars(
            "Attempts",
            vec![
                ("succeeded", "succeeded", counts(|s| s.succeeded_count)),
                ("dead", "failed", counts(|s| s.failed_count)),
            ],
            &ends,
            per_period,
        ),
        Plot::bars("Enqueued", vec![("ready", "enqueued", counts(|s| s.enqueued_count))], &ends, per_period),
        Plot::lines(
            "Wait time",
            vec![("half", "p50", times(|s| s.wait?.p50)), ("tail", "p99", times(|s| s.wait?.p99))],
            &ends,
            short_span,
        ),
        Plot::lines(
            "Run time",
            vec![("half", "p50", times(|s| s.run?.p50)), ("tail", "p99", times(|s| s.run?.p99))],
            &ends,
            short_span,
        ),
    ]
}

/// Returns the backlog of each period. With millions of jobs, brokers do not sample the backlog every minute, and the
/// current period may have no sample yet. A gap of up to `longest` periods repeats the sample before it.
fn filled(by_slot: &[Option<&v1::Stats>], longest: usize) -> Vec<Option<v1::TaskTypeCounts>> {
    let mut backlog: Vec<Option<v1::TaskTypeCounts>> =
        by_slot.iter().map(|stats| stats.and_then(|s| s.backlog)).collect();
    let mut last: Option<usize> = None;
    for at in 0..=backlog.len() {
        let ends = backlog.get(at).is_some_and(Option::is_some);
        let is_over = at == backlog.len();
        if let Some(last) = last.filter(|last| (ends && at - last <= longest + 1) || (is_over && at - last == 2)) {
            let holds = backlog[last];
            backlog[last + 1..at].fill(holds);
        }
        last = if ends { Some(at) } else { last };
    }
    backlog
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_in_which_nobody_counted_has_the_backlog_of_the_one_before() {
        let of = |ready| v1::Stats {
            backlog: (ready > 0).then_some(v1::TaskTypeCounts { ready, ..Default::default() }),
            ..Default::default()
        };
        let all = [0, 5, 0, 7, 0, 0, 0, 0, 2].map(of);
        let by_slot: Vec<Option<&v1::Stats>> = all.iter().map(Some).chain([None]).collect();
        let ready: Vec<i64> = filled(&by_slot, 3).into_iter().map(|b| b.map_or(0, |b| b.ready)).collect();
        // Gaps between samples are filled. After the last sample, only one period is filled, because the backlog may
        // have changed.
        assert_eq!(ready, [0, 5, 5, 7, 0, 0, 0, 0, 2, 2]);
    }
}
