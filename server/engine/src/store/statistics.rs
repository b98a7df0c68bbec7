//! Statistics of task types: aggregation and queries.

use std::time::{Duration, SystemTime};

use howdah_core::job::{DurationStats, Stats, StatsPeriod, TypeId, TypeView};
use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    connection::Param,
    rows::{self, from_row},
};

/// Statistics of a task type in one period, or totals of all requested periods.
#[derive(Clone, Debug)]
pub struct StatsRow {
    /// Name of the task type.
    pub name: String,
    /// Start of the period, or of the first period of a total.
    pub starts: SystemTime,
    /// Counters and durations.
    pub stats: Stats,
}

/// Range of periods to query.
#[derive(Clone, Copy, Debug)]
pub struct StatsRange {
    /// Length of a period.
    pub period: StatsPeriod,
    /// Start of the range: the period that contains this time. `None` for the oldest period.
    pub since: Option<SystemTime>,
    /// End of the range (exclusive): no period starts at this time or later.
    pub until: Option<SystemTime>,
}

impl Store {
    /// Adds at most `at_most` rows of the table `statistics_change` to the statistics, and deletes these rows. Returns
    /// the number of rows, or `None` if another broker is adding rows or has done so less than `every_ms` ago.
    pub async fn sum_statistics(&self, at_most: i32, every_ms: i64) -> Result<Option<i64>, StoreError> {
        let mut connection = self.general().await?;
        connection.one(Statement::SumStatistics, &[&at_most, &every_ms]).await
    }

    /// Deletes statistics whose retention has ended.
    pub async fn forget_statistics(&self) -> Result<(), StoreError> {
        self.general().await?.run(Statement::ForgetStatistics, &[]).await
    }

    /// Stores a sample of the number of jobs per task type and state, at most one per minute. False if the sample of
    /// this minute exists.
    pub async fn sample_backlog(&self, types: &[TypeView]) -> Result<bool, StoreError> {
        let types: Vec<&TypeView> = types.iter().filter(|view| view.counts.iter().any(|count| *count > 0)).collect();
        let names: Vec<&str> = types.iter().map(|view| view.name.as_str()).collect();
        let [ready, leased, scheduled, waiting, dead]: [Vec<i64>; 5] =
            std::array::from_fn(|state| types.iter().map(|view| view.counts[state]).collect());
        let params: [Param<'_>; 6] = [&names, &ready, &leased, &scheduled, &waiting, &dead];
        let row = self.general().await?.query_one(Statement::SampleBacklog, &params).await?;
        Ok(row.get::<_, i64>("samples") > 0)
    }

    /// Returns the time up to which statistics are complete (`None`: never aggregated), and whether that time is more
    /// than `age` ago.
    pub async fn statistics_until(&self, age: Duration) -> Result<(Option<SystemTime>, bool), StoreError> {
        let age_ms = age.as_millis() as i64;
        self.general().await?.one(Statement::StatisticsUntil, &[&age_ms]).await
    }

    /// Returns the periods in which a task type had jobs or events, oldest first.
    pub async fn statistics_of_type(&self, type_id: TypeId, range: StatsRange) -> Result<Vec<StatsRow>, StoreError> {
        let StatsRange { period, since, until } = range;
        let params: [Param<'_>; 4] = [&type_id, &period.minutes(), &since, &until];
        Ok(rows::all(&self.read(Statement::StatisticsOfType, &params).await?))
    }

    /// Returns totals of the busiest task types.
    pub async fn statistics_by_type(&self, range: StatsRange, at_most: i32) -> Result<Vec<StatsRow>, StoreError> {
        let StatsRange { period, since, until } = range;
        let params: [Param<'_>; 4] = [&period.minutes(), &since, &until, &at_most];
        Ok(rows::all(&self.read(Statement::StatisticsByType, &params).await?))
    }

    /// Returns the periods since a time in which any task type had events, oldest first, with the sums over all types, without
    /// run times.
    pub async fn statistics_of_all(&self, period: StatsPeriod, since: SystemTime) -> Result<Vec<StatsRow>, StoreError> {
        Ok(rows::all(&self.read(Statement::StatisticsOfAll, &[&period.minutes(), &since]).await?))
    }
}

from_row! {
    StatsRow(row) {
        name, starts,
        stats: Stats {
            enqueued: row.get("enqueued"),
            succeeded: row.get("succeeded"),
            failed: row.get("failed"),
            dead: row.get("dead"),
            cancelled: row.get("cancelled"),
            expired: row.get("expired"),
            wait: durations(row, "wait_us", "wait_buckets", "wait_counts"),
            run: durations(row, "run_us", "run_buckets", "run_counts"),
            // Totals have no backlog column.
            backlog: row.try_get::<_, Option<Vec<i64>>>("backlog").ok().flatten().and_then(|n| n.try_into().ok()),
        },
    }
}

fn durations(row: &Row, sum: &str, buckets: &str, counts: &str) -> DurationStats {
    DurationStats {
        sum_us: row.get(sum),
        buckets: row.get::<_, Vec<i16>>(buckets).into_iter().zip(row.get::<_, Vec<i64>>(counts)).collect(),
    }
}
