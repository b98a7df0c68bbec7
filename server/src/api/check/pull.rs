//! Checks of `PullJobs`.

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use howdah_proto::v1;

use super::{numbers, task_type, time};
use crate::{
    error::Error,
    job::{ClusterSettings, Limits, TaskTypeName},
};

pub(crate) const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(12);
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
pub(crate) const WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_mins(1);

/// Arguments of a pull.
#[derive(Clone, Debug)]
pub(crate) struct PullArgs {
    /// Task types, without duplicates.
    pub(crate) types: Vec<TaskTypeName>,
    /// Maximum number of jobs.
    pub(crate) max_jobs: usize,
    /// Length of the leases.
    pub(crate) lease: Duration,
    /// Wait time for the first job.
    pub(crate) wait: Duration,
}

/// Checks a pull: task types, number of jobs, lease and wait time.
pub(crate) fn pull_jobs(
    request: &v1::PullJobsRequest,
    cluster: &ClusterSettings,
    limits: &Limits,
) -> Result<PullArgs, Error> {
    numbers::entries("task_types", request.task_types.len(), 1..=limits.stream_types)?;
    let named = request.task_types.iter().enumerate();
    let mut types =
        named.map(|(i, name)| task_type(&format!("task_types[{i}]"), name)).collect::<Result<Vec<_>, _>>()?;
    let mut seen = HashSet::new();
    types.retain(|name| seen.insert(name.clone()));
    Ok(PullArgs {
        types,
        max_jobs: numbers::or_default("max_jobs", i64::from(request.max_jobs), 1, 0..=cluster.batch as i64)? as usize,
        lease: time::optional("lease_duration", request.lease_duration, &LEASE)?.unwrap_or(DEFAULT_LEASE),
        wait: time::optional("wait", request.wait, &WAIT)?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;

    use super::*;

    fn check(request: &v1::PullJobsRequest) -> Result<PullArgs, Error> {
        pull_jobs(request, &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn request() -> v1::PullJobsRequest {
        v1::PullJobsRequest { task_types: vec!["a".into(), "b".into(), "a".into()], ..Default::default() }
    }

    const fn seconds(seconds: i64) -> Option<WireDuration> {
        Some(WireDuration { seconds, nanos: 0 })
    }

    #[test]
    fn what_is_not_said_is_one_job_for_30_s_now() {
        let args = check(&request()).unwrap();
        assert_eq!(args.types.iter().map(TaskTypeName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((args.max_jobs, args.lease, args.wait), (1, Duration::from_secs(30), Duration::ZERO));
    }

    #[test]
    fn whatever_is_out_of_bounds_is_named() {
        let cases = [
            ("task_types", v1::PullJobsRequest::default()),
            ("task_types", v1::PullJobsRequest { task_types: vec!["a".into(); 1001], ..request() }),
            ("task_types[1]", v1::PullJobsRequest { task_types: vec!["a".into(), String::new()], ..request() }),
            ("max_jobs", v1::PullJobsRequest { max_jobs: -1, ..request() }),
            ("max_jobs", v1::PullJobsRequest { max_jobs: 10_001, ..request() }),
            ("lease_duration", v1::PullJobsRequest { lease_duration: seconds(0), ..request() }),
            ("lease_duration", v1::PullJobsRequest { lease_duration: seconds(12 * 3600 + 1), ..request() }),
            ("wait", v1::PullJobsRequest { wait: seconds(-1), ..request() }),
            ("wait", v1::PullJobsRequest { wait: seconds(61), ..request() }),
        ];
        for (field, request) in cases {
            assert_eq!(check(&request).expect_err(field).field(), Some(field));
        }
    }
}
