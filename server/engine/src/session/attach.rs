//! Attaches a session to a worker's stream: adopts the leases that the worker still holds, and opens its windows.

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_core::{error::Error, job::Lease};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Changed, ClientInfo, Closing, Drain, Gone, Held, ServerMessage, Session, SessionContext, SessionId, Sessions,
    StoreShare, SubscribeArgs, detach, permit,
};
use crate::{
    access::{Caller, Operation},
    backoff::Backoff,
    dispatch::{Recipient, Window},
    store::{Adopted, Lane, LockWait, Store, StoreError},
    wake::{Loss, SessionMark},
};

/// A session attached to a stream. When the stream ends for any reason, this value is dropped. Its drop detaches the
/// session and releases unsent jobs.
pub(super) struct Attachment {
    pub(super) context: Arc<SessionContext>,
    pub(super) session: Arc<Session>,
    pub(super) stream: u64,
    /// Cancelled to stop the task that reads the stream.
    pub(super) gone: CancellationToken,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.gone.cancel();
        detach::detach(&self.context, &self.session, self.stream, detach::ResumeTime::Grace);
    }
}

/// Attaches a session to this stream: adopts the leases that the worker still holds, and opens its windows.
pub(super) async fn attach(
    context: &Arc<SessionContext>,
    caller: &Caller,
    client: ClientInfo,
    subscribe: SubscribeArgs,
    share: Option<&StoreShare>,
) -> Result<Attachment, Error> {
    if context.is_draining() {
        return Err(Error::Unavailable("the broker is stopping; connect to another one".into()));
    }
    for window in &subscribe.windows {
        caller.check(Operation::Work, &window.task_type)?;
    }
    let foreign = permit::foreign_leases(context, caller, subscribe.held.iter().copied()).await?;
    let names: Vec<_> = subscribe.windows.iter().map(|w| w.task_type.clone()).collect();
    let types = context.registry.resolve(&names, caller.principal()).await?;
    // From here on the session belongs to this stream, so the grace time of an older stream cannot end it.
    let next_generation = share.map_or(0, |share| share.next_generation);
    let Some((session, stream, elsewhere)) =
        context.sessions.get_or_new(caller, subscribe.session_id.clone(), next_generation)
    else {
        return Err(Error::SessionResumed);
    };
    let attachment =
        Attachment { context: context.clone(), session: session.clone(), stream, gone: CancellationToken::new() };
    context.dispatch.remove_session(session.key());
    let mut wanted = subscribe.held.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let own: Vec<Lease> = wanted.iter().copied().filter(|lease| !foreign.contains(&lease.id)).collect();
    // The guard prevents this broker from failing leases while it adopts them, and from adopting leases that it is
    // failing.
    let adopting = context.release.adopt(own.clone());
    if adopting.leases.len() < own.len() {
        // This broker is failing the other leases of the worker, and the result is unknown yet. When the worker tries
        // again, it learns which leases it has lost.
        return Err(Error::Unavailable("this broker is ending a lease of this session; try again".into()));
    }
    let adopted = match adopt(context, &context.store, &own).await {
        Ok(adopted) => adopted,
        Err(error) => {
            // The adoption may have been committed although it returned an error. Then no other broker ends these
            // leases, so this broker must.
            detach::fail_unless_held(context, own);
            return Err(error.into());
        }
    };
    // Jobs that do not fit into a message to this worker are not claimed for it. Other brokers may have workers that
    // take them.
    let max_message_bytes = subscribe.max_message_bytes.min(context.config.limits.message_bytes) as u64;
    let liveness = subscribe.liveness.unwrap_or(context.config.liveness);
    // A worker lists every lease that it has received. So other jobs that the session held here never reached the
    // worker.
    let Some(unlisted) = session.take_over(stream, &adopted, &wanted, max_message_bytes, liveness) else {
        // The worker has opened a later stream meanwhile, perhaps without some of these leases.
        detach::fail_unless_held(context, own);
        return Err(Error::SessionResumed);
    };
    drop(adopting);
    if let Some(mark) = elsewhere
        && own.len() == wanted.len()
        && adopted.iter().all(|a| !a.locked)
    {
        // This broker now owns all leases that the worker holds. The broker of the older stream may release the leases
        // that it still keeps for the session, because their jobs never reached the worker.
        context.wake.resumed_here(mark);
    }
    session.state.lock().activity.connect(client, subscribe.labels.clone());
    adopt_when_unlocked(context, adopted.iter().filter(|a| a.locked).map(|a| a.lease).collect());
    // The worker listed these leases, but this broker could not adopt them. Their attempts fail: the jobs may have
    // started.
    let (listed, unlisted) = unlisted.into_iter().partition(|lease| wanted.binary_search(lease).is_ok());
    context.release.fail(listed, detach::LOST);
    context.release.release(unlisted);
    let recipient: Arc<dyn Recipient> = session.clone();
    for (window, type_id) in subscribe.windows.iter().zip(types) {
        let held = session.load_of(type_id);
        context.dispatch.set_window(
            &recipient,
            type_id,
            Window { jobs: window.jobs as u32, bytes: window.bytes },
            held,
            share.map(|share| share.right(&window.task_type)),
        );
    }
    if let Some(share) = share {
        share.attached();
    }
    session.note(Changed::Windows);
    if context.is_draining() {
        // The broker began to stop after the check at the start, so the session has missed the `Drain` that all
        // sessions got.
        Sessions::drain_one(&session, &context.dispatch);
    }
    let worker = session.public_id();
    tracing::debug!(session = session.key, worker, labels = ?subscribe.labels, kept = adopted.len(), "worker connected");
    Ok(attachment)
}

/// Maximum number of fencing tokens that are tried for one job. A correct worker sends one token for each job.
const ADOPT_ROUNDS: usize = 3;

/// Adopts the leases that the worker has sent. The worker may name a job twice, with two tokens. A statement accepts
/// each job id once, so the leases are adopted in several rounds.
async fn adopt(context: &Arc<SessionContext>, store: &Store, wanted: &[Lease]) -> Result<Vec<Adopted>, StoreError> {
    let mut adopted = Vec::new();
    let mut rest = wanted.to_vec();
    for _ in 0..ADOPT_ROUNDS {
        if rest.is_empty() {
            break;
        }
        let mut last = None;
        let (now, later): (Vec<Lease>, Vec<Lease>) =
            rest.into_iter().partition(|lease| last.replace(lease.id) != Some(lease.id));
        let adoption = store.adopt(&now, context.dispatch.broker_id(), None).await?;
        adopted.extend(adoption.adopted);
        let own = context.dispatch.broker_ids();
        let others = adoption.others.iter().filter(|(broker_id, _)| !own.contains(broker_id));
        let from_others: HashSet<i64> = others.flat_map(|(_, ids)| ids.iter().copied()).collect();
        let come = adoption.attempts.into_iter().filter(|attempt| from_others.contains(&attempt.lease.id));
        context.dispatch.traces().adopted(come);
        for (broker_id, ids) in adoption.others {
            context.wake.lost_elsewhere(broker_id, ids, Loss::Moved);
        }
        rest = later;
    }
    Ok(adopted)
}

/// Adopts leases that another transaction has locked, as soon as they are unlocked. The worker keeps them meanwhile.
/// The adopting task continues after the session has ended. If a lease ends before its adoption, the worker is told.
fn adopt_when_unlocked(context: &Arc<SessionContext>, mut locked: Vec<Lease>) {
    let context = context.clone();
    tokio::spawn(async move {
        // Waits for the locks inside Postgres most of the time, so that the adoption gets a lock as soon as the other
        // transaction ends.
        let store = context.store.side_lane(Lane::Settle, LockWait::Long);
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        while !locked.is_empty() && !context.is_draining() {
            match adopt(&context, &store, &locked).await {
                Ok(adopted) => {
                    let (still, now): (Vec<Adopted>, Vec<Adopted>) = adopted.into_iter().partition(|a| a.locked);
                    let still: Vec<Lease> = still.iter().map(|a| a.lease).collect();
                    locked.retain(|lease| !still.contains(lease));
                    context.sessions.unlocked(&locked);
                    let now: Vec<Lease> = now.iter().map(|a| a.lease).collect();
                    if now.iter().any(|lease| !context.sessions.holds(*lease)) {
                        detach::fail_unless_held(&context, now);
                    }
                    locked = still;
                    backoff.reset();
                }
                Err(error) => {
                    store.log_failure("adopting locked leases", &error);
                    backoff.pause().await;
                }
            }
        }
    });
}

impl Session {
    fn id(&self, generation: u32) -> SessionId {
        SessionId { random: self.random.clone(), generation }
    }

    /// Returns the generation in the latest `Welcome`, which may not be sent yet.
    pub(super) fn generation(&self) -> u32 {
        self.state.lock().generation
    }

    /// Returns the mark of the session: a hash of its id and principal, which brokers send one another when the worker
    /// resumes.
    pub(super) fn mark(&self) -> SessionMark {
        self.state.lock().mark
    }

    /// Starts a new stream of the session and returns its number. An older stream ends.
    pub(super) fn next_stream(&self, id: &SessionId, principal: &str, next_generation: u32) -> u64 {
        let mut state = self.state.lock();
        state.streams += 1;
        state.generation =
            if next_generation > 0 { next_generation } else { id.generation.max(state.generation).saturating_add(1) };
        state.mark = self.id(state.generation).mark(principal);
        state.stream = Some(state.streams);
        (state.closing, state.drain, state.gone, state.stalled) = (Closing::Open, Drain::No, None, false);
        state.unanswered = 0;
        self.changed.notify_waiters();
        state.streams
    }

    /// Starts this stream with the leases that the worker still holds, and queues a `Welcome`. Returns the leases that
    /// the session held at this broker and that were not adopted. Jobs among them that the worker did not list never
    /// reached it. Returns `None` if the session is already on a later stream.
    pub(super) fn take_over(
        &self,
        stream: u64,
        adopted: &[Adopted],
        wanted: &[Lease],
        max_message_bytes: u64,
        liveness: Duration,
    ) -> Option<Vec<Lease>> {
        let still: HashSet<Lease> = adopted.iter().map(|a| a.lease).collect();
        let mut state = self.state.lock();
        if state.stream != Some(stream) {
            return None;
        }
        // The session is attached here now. A notice that its leases moved to another broker is out of date.
        state.gone = state.gone.filter(|gone| *gone != Gone::Moved);
        let unlisted = state.held().into_iter().filter(|lease| !still.contains(lease)).collect();
        state.held.retain(|_, held| held.settling);
        state.outbox.clear();
        // If the broker has begun to stop meanwhile, the `Drain` was just cleared. It must be sent again after the
        // `Welcome`.
        state.drain = Drain::No;
        (state.max_message_bytes, state.liveness) = (max_message_bytes, Some(liveness));
        let since = Instant::now();
        for a in adopted {
            let (token, bytes) = (a.lease.token, a.bytes as u64);
            let held =
                Held { token, type_id: a.type_id, bytes, settling: false, locked: a.locked, since, started: None };
            // A lease whose outcome is being written keeps its entry.
            state.held.entry(a.lease.id).or_insert(held);
        }
        let generation = state.generation;
        let (kept, lost) = wanted.iter().partition(|lease| still.contains(lease));
        let session_id = self.id(generation).to_string();
        state.outbox.add_message(ServerMessage::Welcome { session_id, kept, lost, liveness });
        drop(state);
        self.changed.notify_one();
        Some(unlisted)
    }
}
