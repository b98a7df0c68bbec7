//! Conversion of jobs to protocol messages, for producers, workers and operators.

use std::time::SystemTime;

use howdah_core::{
    job::{
        CompletedStage, DependencyFailure, DependencyResult, EnqueueOutcome, Enqueued, Failure, JobOptions, JobState,
        JobView, LeasedJob, Progress, TaskTypeName,
    },
    plain_options,
};
use howdah_proto::v1;

use super::{
    task_type::history_mode,
    time::{micros, time},
};

/// Converts the result of enqueuing one job.
pub(crate) fn enqueued(job: Enqueued) -> v1::EnqueuedJob {
    let outcome = match job.outcome {
        EnqueueOutcome::New => v1::EnqueueOutcome::New,
        EnqueueOutcome::Repeated => v1::EnqueueOutcome::Repeated,
        EnqueueOutcome::Kept => v1::EnqueueOutcome::Kept,
        EnqueueOutcome::Replaced => v1::EnqueueOutcome::Replaced,
        EnqueueOutcome::Stale => v1::EnqueueOutcome::Stale,
        EnqueueOutcome::Next => v1::EnqueueOutcome::Next,
        EnqueueOutcome::Debounced => v1::EnqueueOutcome::Debounced,
    };
    v1::EnqueuedJob { id: job.id, is_new: job.is_new(), outcome: outcome as i32 }
}

/// Converts a leased job to the message for its worker. `name` is the task type.
pub(crate) fn leased_job(job: LeasedJob, name: &TaskTypeName) -> v1::LeasedJob {
    let options = job.options.unwrap_or_default();
    v1::LeasedJob {
        after: dependencies(job.dependencies, &options),
        dependency_count: options.after.len() as i32,
        id: job.lease.id,
        token: job.lease.token,
        task_type: name.to_string(),
        attempt: count(job.attempt),
        max_attempts: count(job.max_attempts),
        deadline: job.deadline.map(time),
        payload: job.payload,
        headers: job.headers,
        checkpoint: options.checkpoint(),
        traceparent: options.traceparent.unwrap_or_default(),
        tracestate: options.tracestate.unwrap_or_default(),
        tags: options.tags,
        create_time: Some(time(job.created)),
    }
}

/// Converts dependencies of a job with these options.
pub(crate) fn dependencies(dependencies: Vec<DependencyResult>, options: &JobOptions) -> Vec<v1::DependencyResult> {
    // Without the policy `Run`, the job runs only after all of its dependencies have succeeded. So those that are no longer
    // stored have succeeded, too.
    let runs_anyway = options.on_dependency_failure == Some(DependencyFailure::Run);
    let unstored = if runs_anyway { v1::JobState::Unspecified } else { v1::JobState::Succeeded };
    let convert = |dependency: DependencyResult| v1::DependencyResult {
        id: dependency.id,
        state: dependency.state.map_or(unstored, JobState::to_proto) as i32,
        result: dependency.result,
        truncated: dependency.truncated,
        missing: dependency.state.is_none(),
    };
    dependencies.into_iter().map(convert).collect()
}

/// Converts a job to the message for operators.
pub(crate) fn job(job: JobView) -> v1::Job {
    let updated = updated(&job);
    let shows_payload = job.payload.is_some();
    let (options, coordination) = (job.options.unwrap_or_default(), job.coordination.unwrap_or_default());
    macro_rules! shown {
        (() $($name:ident)+) => { v1::Job { $($name: plain(options.$name.as_ref()),)+ ..v1::Job::default() } };
    }
    v1::Job {
        update_time: Some(time(updated)),
        id: job.id,
        task_type: job.task_type,
        state: job.state.to_proto() as i32,
        payload: job.payload.unwrap_or_default(),
        headers: job.headers,
        priority: i32::from(job.priority),
        attempt: count(job.attempt),
        max_attempts: count(job.max_attempts),
        key: job.key.unwrap_or_default(),
        create_time: Some(time(job.created)),
        run_time: job.run_at.map(time),
        start_time: job.leased_at.map(time),
        finish_time: job.finished.map(time),
        result: job.result.unwrap_or_default(),
        failures: job.failures.into_iter().map(failure).collect(),
        deadline: job.deadline.map(time),
        progress: options.progress().map(progress),
        // A checkpoint holds data of the handler, as a payload does.
        checkpoint: if shows_payload { options.checkpoint() } else { bytes::Bytes::new() },
        tags: job.tags,
        expire_time: options.expire_at_us.map(micros),
        parent_id: options.parent_id.unwrap_or_default(),
        next_stages: coordination.next_stages,
        completed_stages: coordination.completed_stages.into_iter().map(completed_stage).collect(),
        after: coordination.after,
        original_task_type: job.original_task_type.unwrap_or_default(),
        history: options.history.map_or(v1::HistoryMode::Unspecified, history_mode) as i32,
        broker: job.broker.unwrap_or_default(),
        worker_id: job.worker.unwrap_or_default(),
        ..plain_options!(shown)
    }
}

/// Converts the value of a plain option to the protocol, where an unset option has the default of its type.
pub(in crate::api) fn plain<T: Clone, W: TryFrom<T> + Default>(value: Option<&T>) -> W {
    value.cloned().and_then(|value| value.try_into().ok()).unwrap_or_default()
}

/// Returns the time of the job's last change.
fn updated(job: &JobView) -> SystemTime {
    let progress = job.options.as_ref().and_then(|options| options.progress()).map(|progress| progress.updated);
    let failures = job.failures.iter().filter_map(|failure| failure.failed);
    let stages = job.coordination.iter().flat_map(|coordination| &coordination.completed_stages);
    let stages = stages.filter_map(|stage| stage.finished.map(SystemTime::from));
    let times = [job.leased_at, job.finished, progress].into_iter().flatten().chain(failures).chain(stages);
    times.fold(job.created, SystemTime::max)
}

fn completed_stage(stage: CompletedStage) -> v1::CompletedStage {
    v1::CompletedStage {
        task_type: stage.task_type,
        attempt: count(stage.attempt),
        start_time: stage.started.map(|at| time(at.into())),
        finish_time: stage.finished.map(|at| time(at.into())),
    }
}

fn progress(progress: Progress) -> v1::JobProgress {
    v1::JobProgress { fraction: progress.fraction, text: progress.text, update_time: Some(time(progress.updated)) }
}

fn failure(failure: Failure) -> v1::AttemptFailure {
    v1::AttemptFailure {
        attempt: count(failure.attempt),
        error: failure.error,
        start_time: failure.started.map(time),
        finish_time: failure.failed.map(time),
        details: failure.details,
        place: failure.place,
    }
}

/// Converts a number of attempts to the protocol's `uint32`. It is never negative.
fn count(attempts: i16) -> u32 {
    u32::try_from(attempts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use prost_types::Timestamp;

    use super::*;
    use howdah_core::job::{Lease, Started};

    fn leased(options: Option<Box<JobOptions>>) -> v1::LeasedJob {
        let job = LeasedJob {
            lease: Lease { id: 7, token: -3 },
            type_id: 1,
            rank: 0,
            attempt: 2,
            max_attempts: 10,
            created: UNIX_EPOCH + Duration::from_micros(1_500_000),
            deadline: None,
            deadline_in_ms: None,
            waited_us: 0,
            started: Started { type_id: 1, at_us: 0, waited_us: 0 },
            weight: 0,
            headers: [("a".into(), "b".into())].into(),
            options,
            payload: "p".into(),
            dependencies: Vec::new(),
        };
        leased_job(job, &TaskTypeName::parse("email.send").unwrap())
    }

    #[test]
    fn a_leased_job_has_its_types_name_and_its_producers_trace() {
        let options = JobOptions { traceparent: Some("00-1".into()), ..JobOptions::default() };
        let job = leased(options.boxed());
        assert_eq!((job.id, job.token, job.task_type.as_str(), job.attempt), (7, -3, "email.send", 2));
        assert_eq!(job.create_time, Some(Timestamp { seconds: 1, nanos: 500_000_000 }));
        assert_eq!((job.traceparent.as_str(), job.tracestate.as_str()), ("00-1", ""));
    }

    #[test]
    fn unset_fields_of_a_job_are_empty_in_the_message() {
        let view = JobView {
            id: 1,
            task_type: "a".into(),
            state: JobState::Dead,
            priority: -3,
            attempt: 10,
            max_attempts: 10,
            key: None,
            created: UNIX_EPOCH,
            run_at: None,
            leased_at: None,
            finished: Some(UNIX_EPOCH + Duration::from_secs(9)),
            deadline: None,
            headers: [].into(),
            failures: vec![Failure {
                attempt: 10,
                error: "e".into(),
                started: None,
                failed: None,
                details: String::new(),
                place: String::new(),
            }],
            payload: None,
            result: None,
            options: None,
            coordination: None,
            original_task_type: None,
            tags: Vec::new(),
            broker: None,
            worker: None,
        };
        let job = job(view);
        assert_eq!((job.state(), job.priority, job.key.as_str()), (v1::JobState::Dead, -3, ""));
        assert_eq!((job.run_time, job.finish_time.unwrap().seconds), (None, 9));
        assert_eq!(job.update_time, job.finish_time);
        assert_eq!((job.failures[0].attempt, job.failures[0].error.as_str()), (10, "e"));
        assert!(job.payload.is_empty() && job.result.is_empty());
    }
}
