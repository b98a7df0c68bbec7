//! Jobs for a worker without a stream, from several stores: they are asked one after the other, beginning with any of them, until
//! one has jobs. One that does not answer soon is not waited for.

mod asking;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{
    StreamExt as _,
    future::{join_all, select_all},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, sleep_until, timeout};

use super::stream::{EngineOfStream, Home, Serving};
use crate::{
    dispatch::Waiter,
    error::Error,
    job::{LeasedJob, TaskTypeName, TypeId},
    memory::{AnswerMemory, Held},
    registry::Awaited,
    session::{Pulling, SessionContext, Unsent, pull::PULL_BYTES},
    store::StoreError,
};
use asking::Asking;

/// After this time without an answer, the next store is asked, too.
const PATIENCE: Duration = Duration::from_millis(500);

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

/// A store that can be asked.
struct Part {
    engine: usize,
    context: Arc<SessionContext>,
    ids: Vec<TypeId>,
    /// Notes that these types are pulled, for as long as the call goes on.
    _pulling: Pulling,
    /// The types that it does not have yet.
    awaited: Awaited,
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
    let mut parts = parts(&served, engines.len(), home, &args.types, by).await?;
    let contexts: Vec<Arc<SessionContext>> = parts.iter().map(|part| part.context.clone()).collect();
    // Registered before the first look, so that no job that comes in between is missed.
    let waiting = contexts.iter().zip(&parts).map(|(context, part)| context.dispatch.wait_for(&part.ids));
    let mut waiters: Vec<Waiter<'_>> = waiting.collect();
    let (mut asking, mut looks) = (Asking::new(parts.len()), FuturesUnordered::new());
    let mut held: Option<Held> = None;
    loop {
        if contexts.iter().any(|context| context.is_draining()) {
            return Err(Error::Unavailable("the broker is stopping; call another one".into()));
        }
        if let Some(nth) = asking.next(PATIENCE)
            && let Some((context, part)) = contexts.get(nth).zip(parts.get(nth))
        {
            if held.is_none() {
                let job_bytes = contexts.iter().map(|context| context.registry.cluster().job_bytes()).max();
                held = Some(room.take(2 * (PULL_BYTES as usize + job_bytes.unwrap_or_default())).await?);
            }
            looks.push(look(nth, context.clone(), part.ids.clone(), args.max_jobs, args.lease));
        } else if asking.is_idle() {
            if asking.is_last() {
                return nothing(&contexts, held, asking.failure());
            }
            // Not held while the call waits for jobs.
            held = None;
        }
        tokio::select! {
            Some((nth, looked)) = looks.next(), if !looks.is_empty() => {
                if let Some((jobs, unsent)) = asking.answered(nth, looked)
                    && let Some(held) = held.take()
                {
                    return Ok((jobs, unsent, held));
                }
            }
            () = sleep_until(asking.patient_until()), if asking.is_waiting() => {
                if asking.gives_up() {
                    return nothing(&contexts, held, asking.failure());
                }
            }
            nth = rung(&waiters) => asking.ask(nth),
            nth = appeared(&parts) => {
                if let (Some(part), Some(waiter), Some(context)) =
                    (parts.get_mut(nth), waiters.get_mut(nth), contexts.get(nth))
                    && part.look_up(&args.types).await.is_ok()
                {
                    *waiter = context.dispatch.wait_for(&part.ids);
                    asking.ask(nth);
                }
            }
            // When the wait is over, look once more.
            () = sleep_until(until), if !asking.is_last() => asking.ask_last(),
        }
    }
}

/// Nothing was found; an error only if no store has answered.
fn nothing(
    contexts: &[Arc<SessionContext>],
    held: Option<Held>,
    failure: Option<Error>,
) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
    match (contexts.first(), held, failure) {
        (Some(context), Some(held), None) => Ok((Vec::new(), Unsent::new(Vec::new(), context.release.clone()), held)),
        (_, _, failure) => Err(failure.unwrap_or_else(|| Error::Unavailable("no store has answered in time".into()))),
    }
}

async fn look(
    nth: usize,
    context: Arc<SessionContext>,
    ids: Vec<TypeId>,
    max_jobs: usize,
    lease: Duration,
) -> (usize, Result<(Vec<LeasedJob>, Unsent), Error>) {
    (nth, context.pull_once(&ids, max_jobs, lease).await)
}

/// The first that may have jobs.
async fn rung(waiters: &[Waiter<'_>]) -> usize {
    select_all(waiters.iter().map(|waiter| Box::pin(waiter.rung()))).await.1
}

/// The first that has one more of the types.
async fn appeared(parts: &[Part]) -> usize {
    select_all(parts.iter().map(|part| Box::pin(part.awaited.appeared()))).await.1
}

impl Part {
    fn new(
        engine: usize,
        context: Arc<SessionContext>,
        found: &HashMap<TaskTypeName, TypeId>,
        types: &[TaskTypeName],
    ) -> Self {
        let awaited = context.registry.await_types(missing(found, types));
        let ids: Vec<TypeId> = found.values().copied().collect();
        let pulling = context.sessions.pulls.begin(&ids);
        Self { engine, context, ids, _pulling: pulling, awaited }
    }

    async fn look_up(&mut self, types: &[TaskTypeName]) -> Result<(), StoreError> {
        let found = self.context.registry.find_all(types).await?;
        *self = Self::new(self.engine, self.context.clone(), &found, types);
        Ok(())
    }
}

fn missing(found: &HashMap<TaskTypeName, TypeId>, types: &[TaskTypeName]) -> Vec<TaskTypeName> {
    types.iter().filter(|name| !found.contains_key(*name)).cloned().collect()
}

/// The stores that have answered which of the types they have. Types that none has are created at home.
async fn parts(
    served: &[(usize, Serving)],
    engines: usize,
    home: &Home,
    types: &[TaskTypeName],
    by: &str,
) -> Result<Vec<Part>, Error> {
    let find = |(nth, serving): &(usize, Serving)| {
        let (nth, context) = (*nth, serving.context.clone());
        async move { (nth, timeout(PATIENCE, context.registry.find_all(types)).await, context.clone()) }
    };
    let (mut parts, mut failure) = (Vec::new(), None);
    for (nth, found, context) in join_all(served.iter().map(find)).await {
        match found {
            Ok(Ok(found)) => parts.push((Part::new(nth, context, &found, types), found)),
            Ok(Err(error)) => failure = Some(Error::from(error)),
            Err(_) => {}
        }
    }
    if parts.is_empty() {
        return Err(failure.unwrap_or_else(|| Error::Unavailable("no store has answered in time".into())));
    }
    if parts.len() == engines {
        let is_nowhere = |name: &&TaskTypeName| parts.iter().all(|(_, found)| !found.contains_key(*name));
        let new: Vec<TaskTypeName> = types.iter().filter(is_nowhere).cloned().collect();
        for (part, _) in &mut parts {
            let own: Vec<TaskTypeName> = new.iter().filter(|name| home(name) == part.engine).cloned().collect();
            if !own.is_empty() {
                part.context.registry.resolve(&own, by).await?;
                part.look_up(types).await?;
            }
        }
    }
    Ok(parts.into_iter().map(|(part, _)| part).collect())
}
