//! Statistics of task types.

use howdah_proto::v1;

use super::time::{duration, time};
use crate::{job::DurationStats, store::StatsRow};

/// Converts the statistics of a type in a period, or a total.
pub(crate) fn stats(row: StatsRow) -> v1::Stats {
    let StatsRow { name, starts, stats } = row;
    v1::Stats {
        task_type: name,
        start_time: Some(time(starts)),
        enqueued_count: stats.enqueued,
        succeeded_count: stats.succeeded,
        failed_count: stats.failed,
        dead_count: stats.dead,
        cancelled_count: stats.cancelled,
        expired_count: stats.expired,
        wait: Some(durations(&stats.wait)),
        run: Some(durations(&stats.run)),
        backlog: stats.backlog.map(super::task_type::counts),
        store: String::new(),
    }
}

fn durations(stats: &DurationStats) -> v1::DurationStats {
    let percentile = |part| stats.percentile(part).map(duration);
    v1::DurationStats {
        count: stats.count(),
        sum_seconds: stats.sum_us / 1e6,
        mean: stats.mean().map(duration),
        p50: percentile(0.5),
        p90: percentile(0.9),
        p99: percentile(0.99),
    }
}
