//! Pull calls (leases without a stream) over several stores. A pull queries one store after the other, starting with a
//! random one, until a store returns jobs. If a store has not answered after `OVERLAP_AFTER`, the next store is queried
//! as well.

mod pulled_store;
mod query_order;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, future::select_all, stream::FuturesUnordered};
use howdah_core::{
    error::Error,
    job::{LeasedJob, TaskTypeName},
};
use howdah_engine::{
    dispatch::Waiter,
    memory::{AnswerMemory, Held},
    session::{SessionContext, Unsent, pull::PULL_BYTES},
};
use tokio::time::{Instant, sleep_until};

use super::stream::{Home, Serving, StreamStore};
use pulled_store::{LateWait, PulledStore, pulled_stores, query};
use query_order::{QueryOrder, Times};

/// Time after which the next store is queried as well if the queried store has not answered.
const OVERLAP_AFTER: Duration = Duration::from_millis(500);
/// Time after the end of a pull call's wait at which it stops waiting for slow stores. It is far longer than a claim on
/// a busy machine. Jobs that a store returns later are released.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Pause before a store whose query failed is queried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of a pull.
#[derive(Debug)]
pub(crate) struct PullArgs {
    /// Task types to pull, at least one.
    pub(crate) types: Vec<TaskTypeName>,
    /// Maximum number of jobs to lease.
    pub(crate) max_jobs: usize,
    /// Duration of the leases.
    pub(crate) lease: Duration,
    /// Maximum time for which the call waits until a job is ready.
    pub(crate) wait: Duration,
}

/// Leases ready jobs of one of the stores that have the task types. With a single store, calls `SessionContext::pull`.
/// `room` reserves memory for the answer, and `by` is the caller's principal. The jobs are released if the answer is
/// not sent.
pub(crate) async fn pull(
    stores: &[StreamStore],
    home: &Home,
    args: PullArgs,
    (room, by): (AnswerMemory, &str),
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    let served: Vec<(usize, Serving)> =
        stores.iter().enumerate().filter_map(|(nth, store_no)| Some((nth, store_no.now()?))).collect();
    if let ([(_, only)], 1) = (&served[..], stores.len()) {
        return only.context.clone().pull(args.types, args.max_jobs, args.lease, args.wait, (room, by)).await;
    }
    let until = Instant::now() + args.wait;
    let pulled_stores = pulled_stores(&served, stores.len(), home, &args.types, by).await?;
    first_found(pulled_stores, &args, until, room).await
}

/// Queries the stores until one returns jobs or the call's wait is over. Returns the jobs of that store.
async fn first_found(
    mut pulled_stores: Vec<PulledStore>,
    args: &PullArgs,
    until: Instant,
    room: AnswerMemory,
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    let contexts: Vec<Arc<SessionContext>> = pulled_stores.iter().map(|store| store.context().clone()).collect();
    // Registers the waiters before the first query. Otherwise the call would miss jobs that become ready between its
    // query and the registration.
    let mut waiters: Vec<Waiter<'_>> =
        contexts.iter().zip(&pulled_stores).map(|(context, store)| context.dispatch.wait_for(store.ids())).collect();
    let is_unreachable = |nth: usize| contexts.get(nth).is_some_and(|context| context.store.is_unreachable());
    let mut query_order = QueryOrder::new(
        pulled_stores.len(),
        is_unreachable,
        Times { overlap_after: OVERLAP_AFTER, longest: GIVE_UP_AFTER, again: LOOK_AGAIN },
    );
    let (mut late_wait, mut queries) = (LateWait::new(&contexts), FuturesUnordered::new());
    let mut held: Option<Held> = None;
    loop {
        if contexts.iter().any(|context| context.is_draining()) {
            return Err(Error::Unavailable("the broker is stopping; call another one".into()));
        }
        if let Some(nth) = query_order.next()
            && let Some(store) = pulled_stores.get(nth)
        {
            if held.is_none() {
                held = Some(room.take(answer_bytes(&contexts)).await?);
            }
            queries.push(query(nth, store.query_args(), args));
        } else if query_order.is_idle() {
            if query_order.is_last() {
                return nothing(&contexts, held, query_order.failure());
            }
            // No query is running. Releases the memory reserved for the answer while the call waits for jobs.
            held = None;
        }
        tokio::select! {
            Some((nth, found, answer)) = queries.next(), if !queries.is_empty() => {
                if let Some((jobs, unsent)) = query_order.answered(nth, answer)
                    && let Some(held) = held.take()
                {
                    return Ok((jobs, unsent, held));
                }
                if let (Some(found), Some(store), Some(waiter), Some(context)) =
                    (found, pulled_stores.get_mut(nth), waiters.get_mut(nth), contexts.get(nth))
                {
                    store.has(&found, &args.types);
                    *waiter = context.dispatch.wait_for(store.ids());
                    // The previous waiter was registered before the ids of these types were known. Jobs may have become
                    // ready before the new waiter was registered, so the store is queried again.
                    query_order.enqueue(nth);
                }
            }
            () = sleep_until(query_order.timeout_at()), if query_order.is_waiting() => {
                if query_order.gives_up(|nth| !late_wait.waits_for(nth)) {
                    return nothing(&contexts, held, query_order.failure());
                }
            }
            // Only continues the loop: `next` then puts the failed store back into the queue.
            () = sleep_until(query_order.again_at()), if query_order.has_failed() => {}
            nth = first_notified(&waiters) => query_order.enqueue(nth),
            nth = appeared(&pulled_stores) => {
                if let Some(store) = pulled_stores.get_mut(nth) {
                    store.clear_types();
                    query_order.enqueue(nth);
                }
            }
            // When the call's wait is over, all stores are queried a last time.
            () = sleep_until(until), if !query_order.is_last() => query_order.start_last_round(),
        }
    }
}

/// Returns the bytes of memory to reserve for an answer.
fn answer_bytes(contexts: &[Arc<SessionContext>]) -> usize {
    let job_bytes = contexts.iter().map(|context| context.registry.cluster().job_bytes()).max();
    2 * (PULL_BYTES as usize + job_bytes.unwrap_or_default())
}

/// Returns an answer without jobs, or `failure` if no store has answered.
fn nothing(
    contexts: &[Arc<SessionContext>],
    held: Option<Held>,
    failure: Option<Error>,
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    match (contexts.first(), held, failure) {
        (Some(context), Some(held), None) => Ok((Vec::new(), Unsent::new(Vec::new(), context.release.clone()), held)),
        (_, _, failure) => Err(failure.unwrap_or_else(no_store_answered)),
    }
}

fn no_store_answered() -> Error {
    Error::Unavailable("no store answered this pull in time; call again".into())
}

/// Waits until a store has a wake-up for the pulled types. Returns the position of the first such store.
async fn first_notified(waiters: &[Waiter<'_>]) -> usize {
    select_all(waiters.iter().map(|waiter| Box::pin(waiter.notified()))).await.1
}

/// Waits until a requested task type is created in a store that did not have it. Returns the position of that store.
async fn appeared(pulled_stores: &[PulledStore]) -> usize {
    select_all(pulled_stores.iter().map(|store| Box::pin(store.appeared()))).await.1
}
