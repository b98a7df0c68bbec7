//! `PullJobs`: leases ready jobs, for workers without a stream.

use std::{collections::HashSet, ops::RangeInclusive, sync::Arc, time::Duration};

use howdah_core::job::LeasedJob;
use howdah_engine::{
    memory::{AnswerMemory, Held},
    session::{SessionContext, Unsent},
};

use super::messages;
use crate::{
    api::{answer::OnceSent, verbs::prelude::*},
    stores::{
        pull::{self, PullArgs},
        stream,
    },
};

pub(crate) const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(12);
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
pub(crate) const WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_mins(1);

impl Verb for PullJobs {
    const RULE: Rule = Rule::Types(Operation::Work);

    type Args = PullArgs;

    fn check(request: v1::PullJobsRequest, cluster: &ClusterSettings, limits: &Limits) -> Result<PullArgs, Error> {
        numbers::entries("task_types", request.task_types.len(), 1..=limits.stream_types)?;
        let named = request.task_types.iter().enumerate();
        let mut types =
            named.map(|(i, name)| task_type(&format!("task_types[{i}]"), name)).collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::new();
        types.retain(|name| seen.insert(name.clone()));
        let max_jobs = numbers::or_default("max_jobs", i64::from(request.max_jobs), 1, 0..=cluster.batch as i64)?;
        Ok(PullArgs {
            types,
            max_jobs: max_jobs as usize,
            lease: time::optional("lease_duration", request.lease_duration, &LEASE)?.unwrap_or(DEFAULT_LEASE),
            wait: time::optional("wait", request.wait, &WAIT)?.unwrap_or_default(),
        })
    }

    async fn run(call: &mut Call, args: PullArgs) -> Result<v1::PullJobsResponse, Error> {
        if call.named_or_only()?.is_some() {
            let context = call.broker.workers.clone();
            let pull = async move |args: PullArgs, room, by: Arc<str>| {
                context.pull(args.types, args.max_jobs, args.lease, args.wait, (room, &by)).await
            };
            return pull_with(call, args, pull, |_| None).await;
        }
        let (stores, homes) = (call.stores.clone(), call.stores.clone());
        let home: stream::Home = Arc::new(move |name| homes.chosen(name));
        let served = stores.for_stream();
        let pull = async move |args, room, by: Arc<str>| pull::pull(&served, &home, args, (room, &by)).await;
        let context_of = move |job: &LeasedJob| Some(stores.of_id(job.lease.id).ok()??.broker.workers.clone());
        pull_with(call, args, pull, context_of).await
    }

    async fn route(call: &Call, request: v1::PullJobsRequest) -> Answer<Self> {
        call.in_store::<Self>(call.named_or_primary()?, request).await
    }
}

/// Leases jobs with `pull`, and builds the response. `context_of` returns the session context of a job's store; `None` means
/// the store of `call`.
async fn pull_with(
    call: &mut Call,
    args: PullArgs,
    pull: impl AsyncFnOnce(PullArgs, AnswerMemory, Arc<str>) -> Result<(Vec<LeasedJob>, Unsent, Held), Error>,
    context_of: impl Fn(&LeasedJob) -> Option<Arc<SessionContext>>,
) -> Result<v1::PullJobsResponse, Error> {
    for task_type in &args.types {
        call.caller.check(Operation::Work, task_type)?;
    }
    let room = AnswerMemory::new(&call.broker.answers, &call.peer.accounts.answers);
    let _open = if args.wait.is_zero() { None } else { call.caller.open_stream()? };
    let (jobs, unsent, room) = tokio::select! {
        pulled = pull(args, room, call.caller.principal().clone()) => pulled?,
        () = call.caller.ended() => return Err(call.caller.ended_error()),
    };
    let of_store = jobs.first().and_then(context_of);
    let entries = jobs.len();
    let jobs = messages::leased_jobs(jobs, &of_store.as_ref().unwrap_or(&call.broker.workers).registry)?;
    let response = v1::PullJobsResponse { jobs };
    answer::hold(&mut call.response, room, &response, entries * answer::JOB_BYTES);
    call.response.insert(OnceSent::new(move || unsent.sent()));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;

    use super::*;
    use howdah_core::job::TaskTypeName;

    fn check(request: &v1::PullJobsRequest) -> Result<PullArgs, Error> {
        PullJobs::check(request.clone(), &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn request() -> v1::PullJobsRequest {
        v1::PullJobsRequest { task_types: vec!["a".into(), "b".into(), "a".into()], ..Default::default() }
    }

    const fn seconds(seconds: i64) -> Option<WireDuration> {
        Some(WireDuration { seconds, nanos: 0 })
    }

    #[test]
    fn a_pull_takes_one_job_for_30_s_without_waiting_by_default() {
        let args = check(&request()).unwrap();
        assert_eq!(args.types.iter().map(TaskTypeName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((args.max_jobs, args.lease, args.wait), (1, Duration::from_secs(30), Duration::ZERO));
    }

    #[test]
    fn the_error_names_the_invalid_field_of_pull_jobs() {
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
