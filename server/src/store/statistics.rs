//! Statistics of task types: summed up, and read.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::{Statement, Store, StoreError, connection::Param};
use crate::job::{DurationStats, Stats, StatsPeriod, TypeId, TypeView};

/// Statistics of a type in a period, or in all periods that were asked for.
#[derive(Clone, Debug)]
pub struct StatsRow {
    /// The name of the type.
    pub name: String,
    /// When the period starts; for a total, when the first one does.
    pub starts: SystemTime,
    /// What happened in it.
    pub stats: Stats,
}

/// The periods whose statistics are asked for.
#[derive(Clone, Copy, Debug)]
pub struct StatsRange {
    /// How long each is.
    pub period: StatsPeriod,
    /// The first is the one in which this time is; `None`: the oldest.
    pub since: Option<SystemTime>,
    /// None starts at this time or later.
    pub until: Option<SystemTime>,
}

impl Store {
    /// Sums up at most this many changes, unless that was done less than `every_ms` ago. Returns their number; `None`: another
    /// broker does it.
    pub async fn sum_statistics(&self, at_most: i32, every_ms: i64) -> Result<Option<i64>, StoreError> {
        let mut connection = self.general().await?;
        let row = connection.query_one(Statement::SumStatistics, &[&at_most, &every_ms]).await?;
        Ok(row.get("summed"))
    }

    /// Stores how many jobs types have, unless that was done in this minute. Returns whether it was done now.
    pub async fn sample_backlog(&self, types: &[TypeView]) -> Result<bool, StoreError> {
        let types: Vec<&TypeView> = types.iter().filter(|view| view.counts.iter().any(|count| *count > 0)).collect();
        let names: Vec<&str> = types.iter().map(|view| view.name.as_str()).collect();
        let [ready, leased, scheduled, waiting, dead]: [Vec<i64>; 5] =
            std::array::from_fn(|state| types.iter().map(|view| view.counts[state]).collect());
        let params: [Param<'_>; 6] = [&names, &ready, &leased, &scheduled, &waiting, &dead];
        let row = self.general().await?.query_one(Statement::SampleBacklog, &params).await?;
        Ok(row.get::<_, i64>("samples") > 0)
    }

    /// Until when statistics are complete (`None`: they have never been summed up), and whether that is longer ago than `age`.
    pub async fn statistics_until(&self, age: Duration) -> Result<(Option<SystemTime>, bool), StoreError> {
        let age_ms = age.as_millis() as i64;
        let row = self.general().await?.query_one(Statement::StatisticsUntil, &[&age_ms]).await?;
        Ok((row.get("summed"), row.get("is_old")))
    }

    /// The periods of a type in which anything happened or jobs were there, oldest first.
    pub async fn statistics_of_type(&self, type_id: TypeId, range: StatsRange) -> Result<Vec<StatsRow>, StoreError> {
        let StatsRange { period, since, until } = range;
        let params: [Param<'_>; 4] = [&type_id, &period.minutes(), &since, &until];
        let rows = self.read(Statement::StatisticsOfType, &params).await?;
        Ok(rows.iter().map(row).collect())
    }

    /// The totals of the busiest types.
    pub async fn statistics_by_type(&self, range: StatsRange, at_most: i32) -> Result<Vec<StatsRow>, StoreError> {
        let StatsRange { period, since, until } = range;
        let params: [Param<'_>; 4] = [&period.minutes(), &since, &until, &at_most];
        let rows = self.read(Statement::StatisticsByType, &params).await?;
        Ok(rows.iter().map(row).collect())
    }
}

fn row(row: &Row) -> StatsRow {
    let durations = |sum: &str, buckets: &str, counts: &str| DurationStats {
        sum_us: row.get(sum),
        buckets: row.get::<_, Vec<i16>>(buckets).into_iter().zip(row.get::<_, Vec<i64>>(counts)).collect(),
    };
    StatsRow {
        name: row.get("name"),
        starts: row.get("starts"),
        stats: Stats {
            enqueued: row.get("enqueued"),
            succeeded: row.get("succeeded"),
            failed: row.get("failed"),
            dead: row.get("dead"),
            cancelled: row.get("cancelled"),
            expired: row.get("expired"),
            wait: durations("wait_us", "wait_buckets", "wait_counts"),
            run: durations("run_us", "run_buckets", "run_counts"),
            // Totals have none.
            backlog: row.try_get::<_, Option<Vec<i64>>>("backlog").ok().flatten().and_then(|n| n.try_into().ok()),
        },
    }
}
