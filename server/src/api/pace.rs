//! How fast a principal may enqueue. A call above the rate is refused. A pipeline waits, so that its stream is read as slowly
//! as the rate allows: its producer needs no retries, and its jobs stay in order. Jobs that are retried or run by hand count
//! as well: they run once more.

use std::time::{Duration, Instant};

use howdah_proto::v1;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::{access::Caller, error::Error, job::schedule::Template, quota::Exceeded};

/// The longest time that a request of a pipeline waits. After that it is answered with the error.
const LONGEST: Duration = Duration::from_secs(30);

/// Takes these jobs from the rates of the caller's principal, or says which one is used up.
pub(super) fn take(caller: &Caller, jobs: &[v1::NewJob]) -> Result<(), Exceeded> {
    let bytes = || jobs.iter().map(v1::NewJob::encoded_len).sum();
    caller.quota().map_or(Ok(()), |principal| principal.take(jobs.len(), bytes))
}

/// The same for a call, as an error for the caller.
pub(super) fn check(caller: &Caller, jobs: &[v1::NewJob]) -> Result<(), Error> {
    take(caller, jobs).map_err(|exceeded| refusal(caller, exceeded))
}

/// The same for a job of a schedule that is run by hand.
pub(super) fn check_template(caller: &Caller, template: &Template) -> Result<(), Error> {
    let taken = caller.quota().map(|principal| principal.take(1, || template.message.len() + template.payload.len()));
    taken.unwrap_or(Ok(())).map_err(|exceeded| refusal(caller, exceeded))
}

/// The same for a request of a pipeline that has exceeded a rate: it waits until the rate allows it. A broker that stops
/// takes it at once, because it finishes what it has read.
pub(super) async fn wait(
    caller: &Caller,
    jobs: &[v1::NewJob],
    mut exceeded: Exceeded,
    stopping: &CancellationToken,
) -> Result<(), Error> {
    let until = Instant::now() + LONGEST;
    // Other streams of the principal may be faster: then this one waits again.
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

/// Whether the caller's principal may enqueue at all now: for calls of which it is not known before how many jobs they bring.
pub(super) fn may(caller: &Caller) -> Result<(), Error> {
    match caller.quota().map(|principal| principal.take(0, || 0)) {
        Some(Err(exceeded)) => Err(refusal(caller, exceeded)),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Takes jobs that such a call has brought: they are owed.
pub(super) fn owe(caller: &Caller, jobs: usize, bytes: usize) {
    if let Some(principal) = caller.quota() {
        principal.owe(jobs, bytes);
    }
}

fn refusal(caller: &Caller, exceeded: Exceeded) -> Error {
    match caller.quota() {
        Some(principal) => principal.refuse(exceeded),
        None => Error::Internal("a rate without a principal was exceeded".into()),
    }
}
