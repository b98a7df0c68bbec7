//! Puts a session on a stream: it adopts the leases that its worker still holds, and opens its windows.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Changed, ClientInfo, Held, Part, ServerMessage, Session, SessionContext, SessionId, Sessions, SubscribeArgs,
    detach, permit,
};
use crate::{
    access::{Caller, Operation},
    backoff::Backoff,
    dispatch::{Recipient, Window},
    error::Error,
    job::Lease,
    store::{Adopted, Lane, Patience, Store, StoreError},
    wake::{Loss, SessionMark},
};

/// A session on a stream. It is dropped with the stream, however that ends. Then the session is detached, and jobs that
/// were not sent are released.
pub(super) struct Attachment {
    pub(super) context: Arc<SessionContext>,
    pub(super) session: Arc<Session>,
    pub(super) stream: u64,
    /// Stops the reader when cancelled.
    pub(super) gone: CancellationToken,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.gone.cancel();
        detach::detach(&self.context, &self.session, self.stream);
    }
}

/// Puts a session on this stream: adopts the leases it still holds, and opens its windows.
pub(super) async fn attach(
    context: &Arc<SessionContext>,
    caller: &Caller,
    client: ClientInfo,
    subscribe: SubscribeArgs,
    part: Option<&Part>,
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
    // The session belongs to this stream from here on: the grace time of an old one cannot end in between.
    let next_turn = part.map_or(0, |part| part.next_turn);
    let Some((session, stream, elsewhere)) =
        context.sessions.get_or_new(caller, subscribe.session_id.clone(), next_turn)
    else {
        return Err(Error::SessionResumed);
    };
    let attachment =
        Attachment { context: context.clone(), session: session.clone(), stream, gone: CancellationToken::new() };
    context.dispatch.leave(session.key());
    let mut wanted = subscribe.held.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let own: Vec<Lease> = wanted.iter().copied().filter(|lease| !foreign.contains(&lease.id)).collect();
    // Of these, none is failed here while it is adopted, and none is adopted that is about to be failed.
    let adopting = context.release.adopt(own.clone());
    if adopting.leases.len() < own.len() {
        // Not lost yet, and perhaps not this broker's: it is asked for again when that is known.
        return Err(Error::Unavailable("a lease of this session is just being ended here; try again".into()));
    }
    let adopted = match adopt(context, &context.store, &own).await {
        Ok(adopted) => adopted,
        Err(error) => {
            // The adoption may have been committed. Then the leases are this broker's, and no other broker ends them.
            detach::fail_unless_held(context, own);
            return Err(error.into());
        }
    };
    // The worker on an old stream of this session is the same one: jobs that it did not list never reached it. A job
    // that this broker cannot send is for another one.
    let max_message_bytes = subscribe.max_message_bytes.min(context.config.limits.message_bytes) as u64;
    let Some(unlisted) = session.take_over(stream, &adopted, &wanted, max_message_bytes) else {
        // It has opened a later stream meanwhile, perhaps without some of these.
        detach::fail_unless_held(context, own);
        return Err(Error::SessionResumed);
    };
    drop(adopting);
    if let Some(mark) = elsewhere
        && own.len() == wanted.len()
        && adopted.iter().all(|a| !a.locked)
    {
        // All that its worker has is this broker's now: what another broker has of it, it never got.
        context.wake.went_on_here(mark);
    }
    session.state.lock().activity.connect(client, subscribe.labels.clone());
    adopt_when_unlocked(context, adopted.iter().filter(|a| a.locked).map(|a| a.lease).collect());
    // What it did list, and this broker could not adopt, it may have begun.
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
            part.map(|part| part.turn(&window.task_type)),
        );
    }
    if let Some(part) = part {
        part.attached();
    }
    session.note(Changed::Windows);
    if context.is_draining() {
        // The session came while the others were told to leave.
        Sessions::drain_one(&session, &context.dispatch);
    }
    let worker = session.public_id();
    tracing::debug!(session = session.key, worker, labels = ?subscribe.labels, kept = adopted.len(), "worker connected");
    Ok(attachment)
}

/// The tokens of one job that are tried; a worker has one.
const ADOPT_TURNS: usize = 3;

/// Takes over the leases that the worker proves. It may name a job twice, with two tokens. A statement takes each id
/// once, so they are adopted in turns.
async fn adopt(context: &Arc<SessionContext>, store: &Store, wanted: &[Lease]) -> Result<Vec<Adopted>, StoreError> {
    let mut adopted = Vec::new();
    let mut rest = wanted.to_vec();
    for _ in 0..ADOPT_TURNS {
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

/// Another transaction has locked these leases. Their worker keeps them, and this broker adopts them as soon as that is
/// possible, whether or not the session still is here. Should they have ended by then, the worker is told.
fn adopt_when_unlocked(context: &Arc<SessionContext>, mut locked: Vec<Lease>) {
    let context = context.clone();
    tokio::spawn(async move {
        // Waits in Postgres for most of the time, so that it is the first when the lock goes.
        let store = context.store.aside(Lane::Settle, Patience::Long);
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
                    store.failed("adopting leases that were locked", &error);
                    backoff.pause().await;
                }
            }
        }
    });
}

impl Session {
    fn id(&self, turn: u32) -> SessionId {
        SessionId { random: self.random.clone(), turn }
    }

    /// Which turn its last Welcome gave, or will give.
    pub(super) fn turn(&self) -> u32 {
        self.state.lock().turn
    }

    /// What brokers call it at that turn.
    pub(super) fn mark(&self) -> SessionMark {
        self.state.lock().mark
    }

    /// Starts a new stream, and returns its number; an old one ends.
    pub(super) fn next_stream(&self, id: &SessionId, principal: &str, next_turn: u32) -> u64 {
        let mut state = self.state.lock();
        state.streams += 1;
        state.turn = if next_turn > 0 { next_turn } else { id.turn.max(state.turn).saturating_add(1) };
        state.mark = self.id(state.turn).mark(principal);
        state.stream = Some(state.streams);
        (state.closing, state.closing_now, state.draining, state.stalled) = (false, false, false, false);
        (state.moved, state.leaving) = (false, false);
        state.unanswered = 0;
        self.changed.notify_waiters();
        state.streams
    }

    /// Begins on this stream with what it still holds, and a Welcome. Returns what it held here before
    /// and its worker did not list: it never got them. `None`: it is on a later stream.
    pub(super) fn take_over(
        &self,
        stream: u64,
        adopted: &[Adopted],
        wanted: &[Lease],
        max_message_bytes: u64,
    ) -> Option<Vec<Lease>> {
        let still: HashSet<Lease> = adopted.iter().map(|a| a.lease).collect();
        let mut state = self.state.lock();
        if state.stream != Some(stream) {
            return None;
        }
        // It is here now, wherever its leases were seen while they were on their way.
        state.moved = false;
        let unlisted = state.held().into_iter().filter(|lease| !still.contains(lease)).collect();
        state.held.retain(|_, held| held.settling);
        state.outbox.clear();
        // If the broker has begun to stop meanwhile, its Drain was just cleared. It must be sent again, after the
        // Welcome.
        (state.draining, state.leaving) = (false, false);
        state.max_message_bytes = max_message_bytes;
        let since = Instant::now();
        for a in adopted {
            let (token, bytes) = (a.lease.token, a.bytes as u64);
            let held =
                Held { token, type_id: a.type_id, bytes, settling: false, locked: a.locked, since, started: None };
            // One whose outcome is being written stays so.
            state.held.entry(a.lease.id).or_insert(held);
        }
        let turn = state.turn;
        let (kept, lost) = wanted.iter().partition(|lease| still.contains(lease));
        state.outbox.add_message(ServerMessage::Welcome { session_id: self.id(turn).to_string(), kept, lost });
        drop(state);
        self.changed.notify_one();
        Some(unlisted)
    }
}
