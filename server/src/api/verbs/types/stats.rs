//! `GetStats`: numbers and durations of the jobs of task types, by minute, hour or day.

use howdah_core::job::{DurationStats, StatsPeriod, TaskTypeName};
use howdah_engine::store::{StatsRange, StatsRow};

use crate::api::{enums::WireEnum as _, verbs::prelude::*};

const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// A query for statistics.
#[derive(Clone, Debug)]
pub(crate) struct StatsQuery {
    /// Task type whose statistics are returned, one entry per period. `None` for the totals of each type.
    pub(crate) only: Option<TaskTypeName>,
    /// Time range, and length of the periods.
    pub(crate) range: StatsRange,
    /// Maximum number of task types, if totals are returned.
    pub(crate) limit: usize,
}

impl Verb for GetStats {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = StatsQuery;

    fn check(request: v1::GetStatsRequest, _: &ClusterSettings, _: &Limits) -> Result<StatsQuery, Error> {
        let period = StatsPeriod::from_number("period", request.period)?.unwrap_or(StatsPeriod::Hour);
        let (since, until) = (time::optional_at("since", request.since)?, time::optional_at("until", request.until)?);
        if until.is_some_and(|until| since.is_some_and(|since| since >= until)) {
            return Err(Error::invalid("until", "is not later than since"));
        }
        let limit = numbers::within("limit", request.limit.into(), 0..=MAX_PAGE as i64)? as usize;
        Ok(StatsQuery {
            only: optional_task_type("task_type", &request.task_type)?,
            range: StatsRange { period, since, until },
            limit: if limit == 0 { PAGE } else { limit },
        })
    }

    fn permit(caller: &Caller, query: &StatsQuery) -> Result<(), Error> {
        permit::one_or_all(caller, Operation::Read, query.only.as_ref())
    }

    async fn run(call: &mut Call, query: StatsQuery) -> Result<v1::GetStatsResponse, Error> {
        let operator = &call.broker.operator;
        // The time is read before the statistics, so that they include everything that was counted until then.
        let complete_time = operator.stats_until().await?.map(render::time);
        let rows = match &query.only {
            Some(name) => operator.stats_of_type(name, query.range).await?,
            None => operator.stats_by_type(query.range, query.limit).await?,
        };
        Ok(v1::GetStatsResponse { stats: rows.into_iter().map(stats).collect(), complete_time })
    }

    async fn route(call: &Call, request: v1::GetStatsRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.each::<Self>(stores, request).await
    }

    fn entries(response: &v1::GetStatsResponse) -> usize {
        response.stats.len()
    }
}

impl Merge for GetStats {
    fn merge(all: &mut v1::GetStatsResponse, part: v1::GetStatsResponse, store: &str) {
        all.stats.extend(part.stats.into_iter().map(|stats| v1::Stats { store: store.to_owned(), ..stats }));
        // The merged statistics are complete until the earliest time of the stores.
        let times = [all.complete_time.take(), part.complete_time].into_iter().flatten();
        all.complete_time = times.min_by_key(|time| (time.seconds, time.nanos));
    }
}

/// Converts the statistics of a task type, for one period or in total.
fn stats(row: StatsRow) -> v1::Stats {
    let StatsRow { name, starts, stats } = row;
    v1::Stats {
        task_type: name,
        start_time: Some(render::time(starts)),
        enqueued_count: stats.enqueued,
        succeeded_count: stats.succeeded,
        failed_count: stats.failed,
        dead_count: stats.dead,
        cancelled_count: stats.cancelled,
        expired_count: stats.expired,
        wait: Some(durations(&stats.wait)),
        run: Some(durations(&stats.run)),
        backlog: stats.backlog.map(render::counts),
        store: String::new(),
    }
}

fn durations(stats: &DurationStats) -> v1::DurationStats {
    let percentile = |part| stats.percentile(part).map(render::duration);
    v1::DurationStats {
        count: stats.count(),
        sum_seconds: stats.sum_us / 1e6,
        mean: stats.mean().map(render::duration),
        p50: percentile(0.5),
        p90: percentile(0.9),
        p99: percentile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn get_stats(request: &v1::GetStatsRequest) -> Result<StatsQuery, Error> {
        GetStats::check(request.clone(), &ClusterSettings::DEFAULT, &Limits::default())
    }

    #[test]
    fn an_empty_request_asks_for_all_hours_of_a_hundred_types() {
        let query = get_stats(&v1::GetStatsRequest::default()).unwrap();
        assert_eq!((query.only, query.limit, query.range.period), (None, 100, StatsPeriod::Hour));
        assert_eq!((query.range.since, query.range.until), (None, None));
    }

    #[test]
    fn the_error_names_the_invalid_field_of_get_stats() {
        let second = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let cases = [
            ("limit", v1::GetStatsRequest { limit: 1001, ..Default::default() }),
            ("limit", v1::GetStatsRequest { limit: -1, ..Default::default() }),
            ("period", v1::GetStatsRequest { period: 4, ..Default::default() }),
            ("task_type", v1::GetStatsRequest { task_type: "a b".into(), ..Default::default() }),
            ("since", v1::GetStatsRequest { since: second(-1), ..Default::default() }),
            ("until", v1::GetStatsRequest { since: second(5), until: second(5), ..Default::default() }),
        ];
        for (field, request) in cases {
            assert_eq!(get_stats(&request).expect_err(field).field(), Some(field));
        }
    }
}
