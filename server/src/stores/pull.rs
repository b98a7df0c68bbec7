//! Jobs for a worker without a stream, from several stores: they are asked one after the other, beginning with any of them, until
//! one has jobs. One that does not answer soon holds up none of the others.

mod asking;
mod part;
mod patient;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, future::select_all, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::stream::{EngineOfStream, Home, Serving};
use crate::{
    dispatch::Waiter,
    error::Error,
    job::{LeasedJob, TaskTypeName},
    memory::{AnswerMemory, Held},
    session::{SessionContext, Unsent, pull::PULL_BYTES},
};
use asking::{Asking, Times};
use part::{Part, look, parts};
use patient::Patient;

/// After this time without an answer, the next store is asked, too.
const PATIENCE: Duration = Duration::from_millis(500);
/// This long after the call's wait is over, a store that has not answered counts as empty. Far longer than a claim takes on a busy
/// machine: jobs that a slow store has found are given back if nobody waits for them, and the next call would find it no faster.
const LONGEST: Duration = Duration::from_secs(10);
/// A store that has failed is asked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a call asks for.
pub(crate) struct PullArgs {
    /// The types; at least one.
    pub(crate) types: Vec<TaskTypeName>,
    /// The most jobs.
    pub(crate) max_jobs: usize,
    /// How long they are leased.
    pub(crate) lease: Duration,
    /// How long to wait for the first.
    pub(crate) wait: Duration,
}

/// Leases ready jobs of one of the stores that have the types, as `SessionContext::pull` does, which it is with one engine. They
/// are released if the answer with them is not sent.
pub(crate) async fn pull(
    engines: &[EngineOfStream],
    home: &Home,
    args: PullArgs,
    (room, by): (AnswerMemory, &str),
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    let served: Vec<(usize, Serving)> =
        engines.iter().enumerate().filter_map(|(nth, engine)| Some((nth, engine.now()?))).collect();
    if let ([(_, only)], 1) = (&served[..], engines.len()) {
        return only.context.clone().pull(args.types, args.max_jobs, args.lease, args.wait, (room, by)).await;
    }
    let until = Instant::now() + args.wait;
    let parts = parts(&served, engines.len(), home, &args.types, by).await?;
    first_found(parts, &args, until, room).await
}

/// The jobs of the first of these stores that has some.
async fn first_found(
    mut parts: Vec<Part>,
    args: &PullArgs,
    until: Instant,
    room: AnswerMemory,
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    let contexts: Vec<Arc<SessionContext>> = parts.iter().map(|part| part.context().clone()).collect();
    // Registered before the first look, so that no job that comes in between is missed.
    let mut waiters: Vec<Waiter<'_>> =
        contexts.iter().zip(&parts).map(|(context, part)| context.dispatch.wait_for(part.ids())).collect();
    let is_away = |nth: usize| contexts.get(nth).is_some_and(|context| context.store.is_away());
    let mut asking =
        Asking::new(parts.len(), is_away, Times { patience: PATIENCE, longest: LONGEST, again: LOOK_AGAIN });
    let (mut patient, mut looks) = (Patient::new(&contexts), FuturesUnordered::new());
    let mut held: Option<Held> = None;
    loop {
        if contexts.iter().any(|context| context.is_draining()) {
            return Err(Error::Unavailable("the broker is stopping; call another one".into()));
        }
        if let Some(nth) = asking.next()
            && let Some(part) = parts.get(nth)
        {
            if held.is_none() {
                held = Some(room.take(answer_bytes(&contexts)).await?);
            }
            looks.push(look(nth, part.question(), args));
        } else if asking.is_idle() {
            if asking.is_last() {
                return nothing(&contexts, held, asking.failure());
            }
            // Not held while the call waits for jobs.
            held = None;
        }
        tokio::select! {
            Some((nth, found, looked)) = looks.next(), if !looks.is_empty() => {
                if let Some((jobs, unsent)) = asking.answered(nth, looked)
                    && let Some(held) = held.take()
                {
                    return Ok((jobs, unsent, held));
                }
                if let (Some(found), Some(part), Some(waiter), Some(context)) =
                    (found, parts.get_mut(nth), waiters.get_mut(nth), contexts.get(nth))
                {
                    part.has(&found, &args.types);
                    *waiter = context.dispatch.wait_for(part.ids());
                    // For what has come in between.
                    asking.ask(nth);
                }
            }
            () = sleep_until(asking.patient_until()), if asking.is_waiting() => {
                if asking.gives_up(|nth| !patient.waits_for(nth)) {
                    return nothing(&contexts, held, asking.failure());
                }
            }
            // It is in the queue then.
            () = sleep_until(asking.again_at()), if asking.has_failed() => {}
            nth = rung(&waiters) => asking.ask(nth),
            nth = appeared(&parts) => {
                if let Some(part) = parts.get_mut(nth) {
                    part.forget();
                    asking.ask(nth);
                }
            }
            // When the wait is over, look once more.
            () = sleep_until(until), if !asking.is_last() => asking.ask_last(),
        }
    }
}

/// Memory for an answer, with which it is made.
fn answer_bytes(contexts: &[Arc<SessionContext>]) -> usize {
    let job_bytes = contexts.iter().map(|context| context.registry.cluster().job_bytes()).max();
    2 * (PULL_BYTES as usize + job_bytes.unwrap_or_default())
}

/// Nothing was found; an error only if no store has answered.
fn nothing(
    contexts: &[Arc<SessionContext>],
    held: Option<Held>,
    failure: Option<Error>,
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    match (contexts.first(), held, failure) {
        (Some(context), Some(held), None) => Ok((Vec::new(), Unsent::new(Vec::new(), context.release.clone()), held)),
        (_, _, failure) => Err(failure.unwrap_or_else(silence)),
    }
}

fn silence() -> Error {
    Error::Unavailable("no store has answered in time".into())
}

/// The first that may have jobs.
async fn rung(waiters: &[Waiter<'_>]) -> usize {
    select_all(waiters.iter().map(|waiter| Box::pin(waiter.rung()))).await.1
}

/// The first that has one more of the types.
async fn appeared(parts: &[Part]) -> usize {
    select_all(parts.iter().map(|part| Box::pin(part.appeared()))).await.1
}
