//! Converts a finished job from the archive to an operator's view.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use howdah_archive::Job;
use howdah_core::job::{JobOptions, JobState, JobView};

use crate::store::failures_of;

/// Returns the view of an archived job, with payload and result if they were read. Omits fields that cannot be parsed,
/// so that operators can see the others.
pub fn view(job: &Job<'_>) -> JobView {
    let headers: Option<HashMap<String, String>> = job.headers.and_then(|json| serde_json::from_str(json).ok());
    let options: Option<JobOptions> = job.options.and_then(|json| serde_json::from_str(json).ok());
    let small = |number: i32| i16::try_from(number).unwrap_or(i16::MAX);
    JobView {
        id: job.id,
        task_type: job.task_type.to_owned(),
        state: JobState::from_name(job.outcome).unwrap_or(JobState::Discarded),
        priority: small(job.priority),
        attempt: small(job.attempt),
        max_attempts: small(job.max_attempts),
        key: job.key.map(str::to_owned),
        created: time(job.created),
        run_at: None,
        leased_at: job.leased_at.map(time),
        finished: Some(time(job.finished)),
        deadline: None,
        headers: headers.unwrap_or_default(),
        failures: job.failures.map(failures_of).unwrap_or_default(),
        payload: job.payload.map(Bytes::copy_from_slice),
        result: job.result.map(Bytes::copy_from_slice),
        original_task_type: None,
        tags: options.as_ref().map(|options| options.tags.clone()).unwrap_or_default(),
        options: options.map(Box::new),
        coordination: None,
        broker: None,
        worker: None,
    }
}

fn time(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let moved = if micros < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moved.unwrap_or(UNIX_EPOCH)
}
