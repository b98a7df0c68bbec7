//! `RerunJobs`: enqueues copies of finished jobs as new jobs.

use std::time::SystemTime;

use howdah_core::job::{EnqueueOutcome, JobState, JobView, RequestKey};
use howdah_engine::{
    operate::{Reran, Rerun, selection::BATCH},
    store::Actor,
};
use howdah_proto::v1::{RerunOutcome, new_job, rerun_jobs_request::Start};

use crate::api::{
    check::{
        self,
        new_job::new_job,
        rerun::{Lost, copy},
    },
    metadata::give_trace_context,
    pace,
    verbs::prelude::*,
};

/// Maximum number of jobs of a call that are read from the archive. Each may take seconds.
pub(crate) const ARCHIVED: usize = 100;
/// Maximum length of `RerunJob.problem`, in bytes.
const PROBLEM: usize = 500;

/// Checked request of `RerunJobs`.
pub(crate) struct Args {
    /// Sorted and without duplicates.
    ids: Vec<i64>,
    /// Start of the new jobs, and their payload if `has_payload`.
    wanted: v1::NewJob,
    has_payload: bool,
    request_key: Option<String>,
}

impl Verb for RerunJobs {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = size_of::<v1::RerunJob>();

    type Args = Args;

    fn check(request: v1::RerunJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Args, Error> {
        numbers::entries("ids", request.ids.len(), 1..=cluster.batch)?;
        let mut ids = request.ids;
        ids.sort_unstable();
        ids.dedup();
        if request.payload.is_some() && ids.len() > 1 {
            return Err(Error::invalid("payload", "is for a single job; set ids to exactly one id"));
        }
        let has_payload = request.payload.is_some();
        let start = request.start.map(|start| match start {
            Start::RunAt(at) => new_job::Start::RunAt(at),
            Start::Delay(delay) => new_job::Start::Delay(delay),
        });
        let payload = request.payload.unwrap_or_default();
        let wanted = v1::NewJob { start, payload, ..v1::NewJob::default() };
        // Checks start and payload before any job is read. The task type is a placeholder.
        new_job(v1::NewJob { task_type: "any".into(), ..wanted.clone() }, cluster, SystemTime::now())?;
        let request_key = text::optional("request_key", request.request_key, cluster.key_bytes)?;
        Ok(Args { ids, wanted, has_payload, request_key })
    }

    /// Includes the memory of the finished jobs that the call reads together.
    fn answer_bytes(args: &Args, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(0, cluster, true) + args.ids.len() * Self::ENTRY_BYTES
    }

    async fn run(call: &mut Call, args: Args) -> Result<v1::RerunJobsResponse, Error> {
        let by = call.by()?;
        pace::may(&call.caller)?;
        let mut jobs = Vec::with_capacity(args.ids.len());
        let mut missing = Vec::new();
        for ids in args.ids.chunks(BATCH) {
            let mut left = finished(call, ids, &mut jobs, &mut missing).await?;
            while !left.is_empty() {
                let (read, has_more) = call.broker.operator.finished_jobs(&left).await?;
                left.retain(|id| read.iter().all(|job| job.id != *id));
                if !has_more || read.is_empty() {
                    // The history of these jobs was dropped after `finished` had read their states.
                    missing.append(&mut left);
                }
                rerun(call, &args, read, &by, &mut jobs).await?;
            }
        }
        rerun_archived(call, &args, missing, &by, &mut jobs).await?;
        jobs.sort_unstable_by_key(|job| job.id);
        pace::force_take(&call.caller, jobs.iter().filter(|job| job.outcome() == RerunOutcome::New).count(), 0);
        Ok(v1::RerunJobsResponse { jobs })
    }

    async fn route(call: &Call, request: v1::RerunJobsRequest) -> Answer<Self> {
        let mut ids = request.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        if request.payload.is_some() && ids.len() > 1 {
            // The primary store rejects the request, because a payload is for exactly one job. A split by store could hide this
            // error.
            return call.primary::<Self>(request).await;
        }
        let with = |request: &v1::RerunJobsRequest, ids| v1::RerunJobsRequest { ids, ..request.clone() };
        call.split::<Self>(request, ids, with).await
    }

    fn entries(response: &v1::RerunJobsResponse) -> usize {
        response.jobs.len()
    }
}

impl Merge for RerunJobs {
    fn merge(all: &mut v1::RerunJobsResponse, part: v1::RerunJobsResponse, _: &str) {
        all.jobs.extend(part.jobs);
        all.jobs.sort_unstable_by_key(|job| job.id);
    }
}

/// Returns the finished jobs among `ids`. Adds jobs that are not in the database to `missing`, and the results of the other
/// jobs to `jobs`.
async fn finished(
    call: &Call,
    ids: &[i64],
    jobs: &mut Vec<v1::RerunJob>,
    missing: &mut Vec<i64>,
) -> Result<Vec<i64>, Error> {
    let mut finished = Vec::new();
    for job in call.broker.operator.states_of(ids).await? {
        match job.known {
            None => missing.push(job.id),
            Some((task_type, _)) if !permit::may(&call.caller, Operation::Operate, &task_type) => {
                jobs.push(unknown(job.id));
            }
            Some((_, state)) if state.is_finished() => finished.push(job.id),
            Some((_, state)) => jobs.push(unfinished(job.id, state)),
        }
    }
    Ok(finished)
}

/// Runs jobs again that the database does not contain, if the archive has them.
async fn rerun_archived(
    call: &Call,
    args: &Args,
    ids: Vec<i64>,
    by: &Actor,
    jobs: &mut Vec<v1::RerunJob>,
) -> Result<(), Error> {
    for (nth, id) in ids.into_iter().enumerate() {
        if nth >= ARCHIVED {
            let problem = format!(
                "the database does not contain it, and a call looks up only {ARCHIVED} jobs in the archive; call again with \
                 fewer ids, or use howdah archive restore"
            );
            jobs.push(not_run(id, RerunOutcome::Refused, &problem));
            continue;
        }
        match call.broker.operator.archived_job(id).await {
            Ok(Some(job)) => rerun(call, args, vec![job], by, jobs).await?,
            Ok(None) => jobs.push(unknown(id)),
            Err(Error::NoArchive(problem)) => jobs.push(not_run(id, RerunOutcome::Refused, &problem)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs these jobs again, and adds their results to `jobs`.
async fn rerun(
    call: &Call,
    args: &Args,
    read: Vec<JobView>,
    by: &Actor,
    jobs: &mut Vec<v1::RerunJob>,
) -> Result<(), Error> {
    let cluster = call.broker.cluster();
    let mut reruns = Vec::with_capacity(read.len());
    for job in read {
        let (old_id, state) = (job.id, job.state);
        if !permit::may(&call.caller, Operation::Operate, &job.task_type) {
            jobs.push(unknown(old_id));
            continue;
        }
        if !state.is_finished() {
            jobs.push(unfinished(old_id, state));
            continue;
        }
        match prepare(call, args, job, &cluster).await {
            Ok(Ok(rerun)) => reruns.push(rerun),
            Ok(Err(result)) => jobs.push(result),
            Err(error @ (Error::Invalid { .. } | Error::Denied(_))) => {
                jobs.push(not_run(old_id, RerunOutcome::Refused, &error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    let results = call.broker.operator.rerun_jobs(reruns, by).await?;
    jobs.extend(results.into_iter().map(|(old_id, result)| answer_of(old_id, result)));
    Ok(())
}

/// Makes the copy of a finished job, and checks it like an enqueued job.
async fn prepare(
    call: &Call,
    args: &Args,
    job: JobView,
    cluster: &ClusterSettings,
) -> Result<Result<Rerun, v1::RerunJob>, Error> {
    let old_id = job.id;
    let mut copies = match copy(job, &args.wanted, args.has_payload) {
        Ok(copy) => [copy],
        Err(Lost::Payload(problem)) => {
            let problem = format!("{problem}; call again for this job with a payload");
            return Ok(Err(not_run(old_id, RerunOutcome::NoPayload, &problem)));
        }
        Err(Lost::Types(problem)) => {
            let problem = format!("{problem}; enqueue a new job instead");
            return Ok(Err(not_run(old_id, RerunOutcome::Refused, &problem)));
        }
    };
    let request = args.request_key.as_ref().map(|key| RequestKey {
        key: RequestKey::name_of_rerun(call.caller.principal(), old_id, key),
        body_hash: check::body_hash(&mut copies),
    });
    give_trace_context(call.metadata.as_ref(), &mut copies);
    let [copy] = copies;
    let job = new_job(copy, cluster, SystemTime::now())?;
    permit::enqueue(&call.broker, &call.caller, std::slice::from_ref(&job)).await?;
    Ok(Ok(Rerun { old_id, job, request }))
}

fn answer_of(id: i64, result: Reran) -> v1::RerunJob {
    let job = match result {
        Reran::Refused(problem) => return not_run(id, RerunOutcome::Refused, &problem),
        Reran::Enqueued(job) => job,
    };
    match job.outcome {
        EnqueueOutcome::Kept => {
            let problem = match job.id {
                holder if holder == id => "it still holds its key, until its key_hold is over".to_owned(),
                holder => format!("job {holder} holds its key; run it again when that job has ended"),
            };
            v1::RerunJob { holder_id: job.id, ..not_run(id, RerunOutcome::KeyHeld, &problem) }
        }
        outcome => {
            let is_repeat = outcome == EnqueueOutcome::Repeated;
            let outcome = if is_repeat { RerunOutcome::Repeated } else { RerunOutcome::New };
            v1::RerunJob { id, outcome: outcome as i32, new_id: job.id, ..v1::RerunJob::default() }
        }
    }
}

fn unknown(id: i64) -> v1::RerunJob {
    not_run(id, RerunOutcome::Unknown, "it does not exist, or its history has been dropped")
}

fn unfinished(id: i64, state: JobState) -> v1::RerunJob {
    let name = state.name();
    let problem = match state {
        JobState::Dead => {
            "it is dead; retry it instead (RetryJobs, howdah retry), which keeps its id and its errors".to_owned()
        }
        JobState::Scheduled => {
            format!("it is {name}; only finished jobs are run again. RetryJobs (howdah retry) starts it now")
        }
        _ => format!("it is {name}; only finished jobs are run again"),
    };
    not_run(id, RerunOutcome::Unfinished, &problem)
}

fn not_run(id: i64, outcome: RerunOutcome, problem: &str) -> v1::RerunJob {
    let problem = problem[..problem.floor_char_boundary(PROBLEM)].to_owned();
    v1::RerunJob { id, outcome: outcome as i32, problem, ..v1::RerunJob::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_invalid_field_of_rerun_jobs() {
        let of = |count| v1::RerunJobsRequest { ids: (1..=count).collect(), ..Default::default() };
        let run_at = |seconds| Some(Start::RunAt(prost_types::Timestamp { seconds, nanos: 0 }));
        let delay = |seconds| Some(Start::Delay(prost_types::Duration { seconds, nanos: 0 }));
        let cases = [
            ("ids", of(0)),
            ("ids", of(10_001)),
            ("payload", v1::RerunJobsRequest { payload: Some("p".into()), ..of(2) }),
            ("payload", v1::RerunJobsRequest { payload: Some(vec![0; (1 << 20) + 1].into()), ..of(1) }),
            ("run_at", v1::RerunJobsRequest { start: run_at(-1), ..of(1) }),
            ("delay", v1::RerunJobsRequest { start: delay(-1), ..of(1) }),
            ("request_key", v1::RerunJobsRequest { request_key: "k".repeat(201), ..of(1) }),
            ("request_key", v1::RerunJobsRequest { request_key: "a\n".into(), ..of(1) }),
        ];
        let check = |request| RerunJobs::check(request, &ClusterSettings::DEFAULT, &Limits::default());
        for (field, request) in cases {
            let error = check(request).map(drop).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
        let twice = v1::RerunJobsRequest { ids: vec![7, 7], payload: Some("p".into()), ..Default::default() };
        assert_eq!(check(twice).unwrap().ids, [7]);
    }
}
