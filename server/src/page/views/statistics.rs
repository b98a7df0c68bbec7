//! Statistics: what happened to the jobs of one type, as plots and as a table; or the totals of all types.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, StatsPeriod};
use jiff::Timestamp;

use crate::{
    error::Error,
    page::{
        Trouble, Visit,
        layout::{Layout, shown},
        plot::Plot,
        words::{When, number, short_span, span},
    },
};

/// Types in the list. Percentiles of each are added up from all of its periods.
const TYPES: i32 = 25;

/// What one may look at: its word, its name, the length, the period and its length in seconds.
type Span = (&'static str, &'static str, u64, StatsPeriod, u64);
const SPANS: [Span; 4] = [
    ("2h", "2 hours", 7_200, StatsPeriod::Minute, 60),
    ("24h", "24 hours", 86_400, StatsPeriod::Hour, 3_600),
    ("7d", "7 days", 604_800, StatsPeriod::Hour, 3_600),
    ("90d", "90 days", 7_776_000, StatsPeriod::Day, 86_400),
];
/// A day, seconds.
const DAY: u64 = 86_400;
/// For how long a count of jobs is taken to hold until the next one, seconds.
const MOST_GAP: u64 = 600;
/// Which of them one sees first.
const FIRST: usize = 1;

#[derive(Template)]
#[template(path = "statistics.html")]
struct View {
    layout: Layout,
    task_type: String,
    /// Words and names of what one may look at, and the word of what is shown.
    spans: [(&'static str, &'static str); SPANS.len()],
    over: &'static str,
    plots: Vec<Plot>,
    rows: Vec<Row>,
    /// Whether there is no such type.
    unknown: bool,
    /// Whether there may be more types.
    cut: bool,
    complete: Option<When>,
}

/// A period of a type, or a type.
struct Row {
    name: String,
    counts: [String; 4],
    /// The most ready jobs, of a period.
    ready: String,
    /// Wait and run time: the mean, half, 90 and 99 % of the attempts, the sum.
    times: [[String; 5]; 2],
}

/// The statistics of a type, or the totals of all of them.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let task_type = visit.params.get("type").to_owned();
    let (over, _, length, period, step) = chosen(visit.params.get("over"))?;
    let layout = visit.layout("statistics");
    let now = Timestamp::now().as_second();
    let first = (now - length as i64).div_euclid(step as i64) * step as i64;
    let mut answer = v1::GetStatsResponse::default();
    // A total adds up all of its periods: longer ones are fewer.
    let whole_days = task_type.is_empty() && length > DAY;
    let period = if whole_days { StatsPeriod::Day } else { period };
    // Totals are for those who may read every type; the others choose one.
    if !task_type.is_empty() || layout.reads_all {
        let request = v1::GetStatsRequest {
            task_type: task_type.clone(),
            period: period.into(),
            since: Some(prost_types::Timestamp { seconds: first, nanos: 0 }),
            until: None,
            limit: TYPES,
        };
        answer = visit.calls().get_stats(&visit.by, request).await?.into_inner();
    }
    let slots = ((now - first).unsigned_abs() / step + 1) as usize;
    let of_type = !task_type.is_empty() && !answer.stats.is_empty();
    let mut rows: Vec<Row> = answer.stats.iter().map(|stats| row(stats, task_type.is_empty(), step)).collect();
    if of_type {
        // The newest first.
        rows.reverse();
    }
    let view = View {
        plots: if of_type { plots(&answer.stats, slots, first, step) } else { Vec::new() },
        unknown: rows.is_empty() && !task_type.is_empty() && visit.is_unknown(&task_type).await,
        cut: task_type.is_empty() && rows.len() == TYPES as usize,
        complete: When::of(answer.complete_time),
        spans: SPANS.map(|(word, name, ..)| (word, name)),
        layout,
        task_type,
        over,
        rows,
    };
    shown(&view)
}

/// The span of a word.
fn chosen(word: &str) -> Result<Span, Error> {
    if word.is_empty() {
        return Ok(SPANS[FIRST]);
    }
    let words = || SPANS.map(|(word, ..)| word).join(", ");
    let found = SPANS.into_iter().find(|(known, ..)| *known == word);
    found.ok_or_else(|| Error::invalid("over", format!("is none of {}", words())))
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

/// The start of a period.
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
        let place = usize::try_from(at.div_euclid(step as i64)).ok().and_then(|slot| by_slot.get_mut(slot));
        // One that began since the clock was read here is seen the next time.
        if let Some(place) = place {
            *place = Some(stats);
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
            "Backlog: the most jobs at once",
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
            "Attempts that ended",
            vec![
                ("succeeded", "succeeded", counts(|s| s.succeeded_count)),
                ("dead", "failed", counts(|s| s.failed_count)),
            ],
            &ends,
            per_period,
        ),
        Plot::bars("Jobs that came", vec![("ready", "enqueued", counts(|s| s.enqueued_count))], &ends, per_period),
        Plot::lines(
            "Time that jobs waited",
            vec![("half", "half at most", times(|s| s.wait?.p50)), ("tail", "99 % at most", times(|s| s.wait?.p99))],
            &ends,
            short_span,
        ),
        Plot::lines(
            "Time that attempts ran",
            vec![("half", "half at most", times(|s| s.run?.p50)), ("tail", "99 % at most", times(|s| s.run?.p99))],
            &ends,
            short_span,
        ),
    ]
}

/// The backlog of each period. Brokers that have counted millions of jobs do not count each minute, and the period under way may
/// not have been counted yet: what was counted before such a gap, of so many periods at most, is taken to hold.
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
        // It holds where counts come before and after, and not for long: jobs may have gone.
        assert_eq!(ready, [0, 5, 5, 7, 0, 0, 0, 0, 2, 2]);
    }
}
