//! Checks of queries for statistics.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_proto::v1;
use prost_types::Timestamp;

use super::{numbers, task_type, time};
use crate::{
    error::Error,
    job::{StatsPeriod, TaskTypeName},
    store::StatsRange,
};

const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// A query for statistics.
#[derive(Clone, Debug)]
pub(crate) struct StatsQuery {
    /// Task type whose periods are returned; `None`: totals of all types.
    pub(crate) only: Option<TaskTypeName>,
    /// Range and length of the periods.
    pub(crate) range: StatsRange,
    /// Maximum number of types.
    pub(crate) limit: usize,
}

/// Checks a query for statistics.
pub(crate) fn get_stats(request: &v1::GetStatsRequest) -> Result<StatsQuery, Error> {
    let name = Some(&request.task_type).filter(|name| !name.is_empty());
    let period = match v1::StatsPeriod::try_from(request.period) {
        Ok(v1::StatsPeriod::Minute) => StatsPeriod::Minute,
        Ok(v1::StatsPeriod::Hour | v1::StatsPeriod::Unspecified) => StatsPeriod::Hour,
        Ok(v1::StatsPeriod::Day) => StatsPeriod::Day,
        Err(_) => return Err(Error::invalid("period", format!("is the unknown value {}", request.period))),
    };
    let (since, until) = (at("since", request.since)?, at("until", request.until)?);
    if until.is_some_and(|until| since.is_some_and(|since| since >= until)) {
        return Err(Error::invalid("until", "is not later than since"));
    }
    let limit = numbers::within("limit", request.limit.into(), 0..=MAX_PAGE as i64)? as usize;
    Ok(StatsQuery {
        only: name.map(|name| task_type("task_type", name)).transpose()?,
        range: StatsRange { period, since, until },
        limit: if limit == 0 { PAGE } else { limit },
    })
}

fn at(field: &str, value: Option<Timestamp>) -> Result<Option<SystemTime>, Error> {
    let us = value.map(|value| time::at(field, value)).transpose()?;
    Ok(us.map(|us| UNIX_EPOCH + Duration::from_micros(us.max(0) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_all_hours_of_a_hundred_types() {
        let query = get_stats(&v1::GetStatsRequest::default()).unwrap();
        assert_eq!((query.only, query.limit, query.range.period), (None, 100, StatsPeriod::Hour));
        assert_eq!((query.range.since, query.range.until), (None, None));
    }

    #[test]
    fn whatever_is_wrong_is_named() {
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
