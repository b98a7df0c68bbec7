//! Enqueue rate limit of a principal. A call above the rate is rejected. A pipeline (`StreamEnqueue`) is throttled instead: its
//! stream is read more slowly, so its producer needs no retries and its jobs stay in order. Retried jobs and manual runs of
//! schedules count too.

use std::time::{Duration, Instant};

use howdah_core::{error::Error, job::schedule::Template};
use howdah_engine::{access::Caller, quota::Exceeded};
use howdah_proto::v1;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

/// Maximum time that a request of a pipeline waits for the rate limits before it fails.
const LONGEST: Duration = Duration::from_secs(30);

/// Takes tokens for these jobs from the principal's rate limits. Fails with the exceeded limit.
pub(super) fn take(caller: &Caller, jobs: &[v1::NewJob]) -> Result<(), Exceeded> {
    let bytes = || jobs.iter().map(v1::NewJob::encoded_len).sum();
    caller.quota().map_or(Ok(()), |principal| principal.take(jobs.len(), bytes))
}

/// Takes rate limit tokens for the jobs of a call. Fails with an error that names the exceeded limit.
pub(super) fn check(caller: &Caller, jobs: &[v1::NewJob]) -> Result<(), Error> {
    take(caller, jobs).map_err(|exceeded| refusal(caller, exceeded))
}

/// Takes a rate limit token for a manual run of a schedule.
pub(super) fn check_template(caller: &Caller, template: &Template) -> Result<(), Error> {
    let taken = caller.quota().map(|principal| principal.take(1, || template.message.len() + template.payload.len()));
    taken.unwrap_or(Ok(())).map_err(|exceeded| refusal(caller, exceeded))
}

/// Waits until the rate limits allow a request of a pipeline. A stopping broker accepts the request immediately, because it
/// completes all requests that it has read.
pub(super) async fn wait(
    caller: &Caller,
    jobs: &[v1::NewJob],
    mut exceeded: Exceeded,
    stopping: &CancellationToken,
) -> Result<(), Error> {
    let until = Instant::now() + LONGEST;
    // Other streams of the principal may take the tokens first. Then this request waits again.
    while Instant::now() + exceeded.wait <= until {
        tokio::select! {
            () = tokio::time::sleep(exceeded.wait) => {}
            () = stopping.cancelled() => return Ok(()),
            () = caller.ended() => return Err(caller.ended_error()),
        }
        match take(caller, jobs) {
            Ok(()) => return Ok(()),
            Err(again) => exceeded = again,
        }
    }
    Err(refusal(caller, exceeded))
}

/// Checks that no rate limit is exceeded now. For calls whose number of jobs is not known in advance.
pub(super) fn may(caller: &Caller) -> Result<(), Error> {
    match caller.quota().map(|principal| principal.take(0, || 0)) {
        Some(Err(exceeded)) => Err(refusal(caller, exceeded)),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Takes rate limit tokens for the jobs of a call, after the end of the call. The balance may become negative.
pub(super) fn force_take(caller: &Caller, jobs: usize, bytes: usize) {
    if let Some(principal) = caller.quota() {
        principal.force_take(jobs, bytes);
    }
}

fn refusal(caller: &Caller, exceeded: Exceeded) -> Error {
    match caller.quota() {
        Some(principal) => principal.refuse(exceeded),
        None => Error::Internal("bug: a caller without a principal exceeded an enqueue rate".into()),
    }
}
