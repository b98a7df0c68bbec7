//! `howdah stats`: shows statistics by task type and period.

use std::time::Duration;

use howdah_client::proto::{DurationStats, GetStatsRequest, Stats, StatsPeriod};
use howdah_core::job;
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    table::Table,
    task_type, text, values,
};

/// Show statistics by task type and period
///
/// Counts jobs and attempts. Shows mean, p50, p90 and p99 of the wait time and the run time of jobs. RUN SUM is the total run
/// time of all attempts. READY is the largest number of ready jobs over the samples of the period. Without a type, shows the
/// totals of all types, most attempts first. Events of the last seconds may be missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah stats
  howdah stats email.send --since 7d
  howdah stats email.send --since 1h --by minute
  howdah stats --since 30d --json | jq -r '[.task_type, .failed_count // 0] | @tsv'

A period is a whole minute, hour or day (UTC). Minutes are kept for 2 hours, hours and days for 90 days.")]
pub(super) struct Args {
    /// Show the periods of this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// Start with the period that contains this time, such as 2027-01-01T03:00:00Z, or the time this long ago, such as 90m or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = values::time_or_ago)]
    since: Timestamp,
    /// Exclude periods that start at this time or later, or less than this long ago
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// Length of the periods [default: minute for up to 2 hours, hour for up to 3 days, day for more]
    #[arg(long, value_name = "PERIOD")]
    by: Option<Period>,
    /// Without a type: show at most this many types, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "task_type", value_parser = clap::value_parser!(i32).range(1..=1000))]
    limit: i32,
    /// Print one JSON object per type or period: the message Stats
    #[arg(long)]
    json: bool,
}

/// Length of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Period {
    Minute,
    Hour,
    Day,
}

/// Tolerance when the age of `--since` is compared with a bound. The age grows after the flag is parsed, but `--since 2h` must
/// still count as 2 hours.
const SLACK: Duration = Duration::from_secs(60);

impl Period {
    /// The period in the protocol and in the broker's statistics.
    fn names(self) -> (StatsPeriod, job::StatsPeriod) {
        match self {
            Self::Minute => (StatsPeriod::Minute, job::StatsPeriod::Minute),
            Self::Hour => (StatsPeriod::Hour, job::StatsPeriod::Hour),
            Self::Day => (StatsPeriod::Day, job::StatsPeriod::Day),
        }
    }

    /// Returns a note if statistics with this period length are kept for less than `age`.
    fn retention_note(self, age: Duration) -> Option<&'static str> {
        (age > self.names().1.kept() + SLACK).then_some(match self {
            Self::Minute => {
                "statistics by minute are kept for 2 hours, so older ones are not shown; --by hour shows more"
            }
            Self::Hour | Self::Day => "statistics by hour and day are kept for 90 days, so older ones are not shown",
        })
    }

    /// Default period for a time range of this length. Longer ranges have longer periods, so that the table stays short.
    fn for_age(age: Duration) -> Self {
        match age {
            _ if age <= Duration::from_hours(2) + SLACK => Self::Minute,
            _ if age <= Duration::from_hours(72) + SLACK => Self::Hour,
            _ => Self::Day,
        }
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let now = Timestamp::now();
    let age = Duration::try_from(now.duration_since(args.since)).unwrap_or_default();
    let period = args.by.unwrap_or_else(|| Period::for_age(age));
    let request = GetStatsRequest {
        task_type: args.task_type.clone().unwrap_or_default(),
        period: period.names().0.into(),
        since: Some(values::wire(args.since)),
        until: args.until.map(values::wire),
        limit: args.limit,
    };
    global.with_client(async |client| {
        let answer = client.get_stats(request).await?;
        if answer.stats.is_empty() {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
        }
        if answer.stats.is_empty() && !args.json {
            note("no events in this time range");
        } else {
            output::list(args.json, "Stats", &answer.stats, || table(&answer.stats, args.task_type.is_some()))?;
        }
        if let Some(text) = period.retention_note(age) {
            note(text);
        }
        Ok(())
    })
}

fn table(all: &[Stats], by_period: bool) -> Table<'_, Stats> {
    let start = |stats: &Stats| text::timestamp(stats.start_time.as_ref()).map(|time| time.strftime("%Y-%m-%d %H:%M"));
    let table = Table::new(all);
    let table = if by_period {
        table.left("START", |stats| start(stats).map(|start| start.to_string()).unwrap_or_default())
    } else {
        table.left("TYPE", |stats| &stats.task_type)
    };
    table
        .right("ENQUEUED", |stats| stats.enqueued_count)
        .right("SUCCEEDED", |stats| stats.succeeded_count)
        .right("FAILED", |stats| stats.failed_count)
        .right("DEAD", |stats| stats.dead_count)
        .right("READY", |stats| stats.backlog.map_or_else(|| "-".into(), |backlog| backlog.ready.to_string()))
        .right("WAIT MEAN", |stats| shown(stats.wait.and_then(|wait| wait.mean)))
        .right("WAIT P50", |stats| shown(stats.wait.and_then(|wait| wait.p50)))
        .right("WAIT P90", |stats| shown(stats.wait.and_then(|wait| wait.p90)))
        .right("WAIT P99", |stats| shown(stats.wait.and_then(|wait| wait.p99)))
        .right("RUN SUM", |stats| sum(&stats.run.unwrap_or_default()))
        .right("RUN MEAN", |stats| shown(stats.run.and_then(|run| run.mean)))
        .right("RUN P50", |stats| shown(stats.run.and_then(|run| run.p50)))
        .right("RUN P90", |stats| shown(stats.run.and_then(|run| run.p90)))
        .right("RUN P99", |stats| shown(stats.run.and_then(|run| run.p99)))
}

/// Formats the sum of all durations.
fn sum(stats: &DurationStats) -> String {
    let sum = Duration::try_from_secs_f64(stats.sum_seconds).ok().filter(|_| stats.count > 0);
    shown(sum.and_then(|sum| sum.try_into().ok()))
}

/// Formats a duration with two or three digits, which is the precision of the statistics.
fn shown(duration: Option<prost_types::Duration>) -> String {
    let Some(duration) = text::duration(duration.as_ref()) else { return "-".into() };
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0..0.001 => format!("{:.0}us", seconds * 1e6),
        0.001..0.01 => format!("{:.1}ms", seconds * 1e3),
        0.01..0.9995 => format!("{:.0}ms", seconds * 1e3),
        0.9995..60.0 => format!("{seconds:.1}s"),
        _ => text::short(duration),
    }
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::TaskTypeCounts;

    use super::*;

    fn stats() -> Stats {
        let wire = |nanos| Some(prost_types::Duration { seconds: 0, nanos });
        let run = DurationStats {
            count: 12,
            sum_seconds: 0.6,
            mean: wire(50_000_000),
            p50: wire(1_234_000),
            p90: wire(100_000_000),
            p99: Some(prost_types::Duration { seconds: 192, nanos: 0 }),
        };
        Stats {
            task_type: "email.send".into(),
            start_time: Some(prost_types::Timestamp { seconds: 3_600, nanos: 0 }),
            enqueued_count: 15,
            succeeded_count: 11,
            failed_count: 1,
            run: Some(run),
            backlog: Some(TaskTypeCounts { ready: 20, waiting: 3, ..Default::default() }),
            ..Stats::default()
        }
    }

    #[test]
    fn a_type_is_shown_by_period_and_all_types_by_name() {
        let lines = |by_period| {
            let shown = table(&[stats()], by_period).to_string();
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(lines(true)[1], "1970-01-01 01:00 15 11 1 0 20 - - - - 600ms 50ms 1.2ms 100ms 3m 12s");
        assert!(lines(false)[1].starts_with("email.send 15 11 1"), "{:?}", lines(false));
    }

    #[test]
    fn a_time_beyond_the_retention_of_statistics_gets_a_note() {
        let hours = |period: Period, hours| period.retention_note(Duration::from_hours(hours));
        assert_eq!([hours(Period::Minute, 2), hours(Period::Hour, 90 * 24), hours(Period::Day, 90 * 24)], [None; 3]);
        assert!(hours(Period::Minute, 3).is_some_and(|text| text.contains("2 hours") && text.contains("--by hour")));
        assert!(hours(Period::Hour, 91 * 24).is_some_and(|text| text.contains("90 days")));
        assert!(hours(Period::Day, 91 * 24).is_some_and(|text| text.contains("90 days")));
    }

    #[test]
    fn long_times_have_long_periods() {
        let hours = |hours| Period::for_age(Duration::from_hours(hours));
        assert_eq!(
            [hours(2), hours(3), hours(72), hours(168)],
            [Period::Minute, Period::Hour, Period::Hour, Period::Day]
        );
    }
}
