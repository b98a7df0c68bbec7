//! The sessions of this broker, by id.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{CancelReason, Pulls, Session, SessionId, outbox::UnsentWatch};
use crate::{
    access::Caller,
    dispatch::{Dispatch, Recipient as _},
    job::Lease,
    traces::Ending,
    wake::SessionMark,
};

/// A principal, and the part of the id that stays. A session belongs to a principal: another one that names its id gets a
/// session of its own.
type SessionName = (Arc<str>, String);

/// Every session that has a stream, or may be resumed.
#[derive(Default)]
pub(crate) struct Sessions {
    table: Mutex<Table>,
    next_key: AtomicU64,
    unsent_watch: Arc<UnsentWatch>,
    gone: Notify,
    /// Calls of programs that have no session.
    pub(crate) pulls: Pulls,
}

#[derive(Default)]
struct Table {
    by_name: HashMap<SessionName, Arc<Session>>,
    /// By the mark of the turn that each is at.
    by_mark: HashMap<SessionMark, Arc<Session>>,
}

impl Sessions {
    pub(super) fn unsent_watch(&self) -> Arc<UnsentWatch> {
        self.unsent_watch.clone()
    }

    /// The caller's session of that id, or a new one, on a new stream with this number. If another broker gave it the id, the
    /// mark by which that one knows it. With a next turn, it gets that one; `None`: it had a later one.
    pub(super) fn get_or_new(
        &self,
        caller: &Caller,
        id: Option<SessionId>,
        next_turn: u32,
    ) -> Option<(Arc<Session>, u64, Option<SessionMark>)> {
        let is_new = id.as_ref().is_none_or(|id| id.turn == 0);
        let id = id.unwrap_or_else(SessionId::new);
        let principal = caller.principal();
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let session = table
            .by_name
            .entry((principal.clone(), id.random.clone()))
            .or_insert_with(|| {
                let key = self.next_key.fetch_add(1, Ordering::Relaxed);
                Arc::new(Session::new(key, id.random.clone(), caller.clone(), self.unsent_watch.clone()))
            })
            .clone();
        if next_turn > 0 && session.turn() > next_turn {
            return None;
        }
        *session.caller.lock() = caller.clone();
        let given_here = table.by_mark.remove(&session.mark()).is_some() && session.turn() == id.turn;
        let stream = session.next_stream(&id, principal, next_turn);
        table.by_mark.insert(session.mark(), session.clone());
        Some((session, stream, (!is_new && !given_here).then(|| id.mark(principal))))
    }

    pub(super) fn find(&self, caller: &Caller, id: &SessionId) -> Option<Arc<Session>> {
        self.table.lock().by_name.get(&(caller.principal().clone(), id.random.clone())).cloned()
    }

    /// Removes a session whose last stream was this one, unless it got another one since.
    pub(super) fn remove_if_ended(&self, session: &Session, stream: u64) -> bool {
        let mut table = self.table.lock();
        let ended = {
            let mut state = session.state.lock();
            let ended = state.stream.is_none() && state.streams == stream;
            state.ended |= ended;
            ended
        };
        if ended {
            let name = (session.caller().principal().clone(), session.random.clone());
            if table.by_name.get(&name).is_some_and(|s| s.key == session.key) {
                table.by_name.remove(&name);
                table.by_mark.remove(&session.mark());
            }
            self.gone.notify_waiters();
        }
        ended
    }

    /// Every session.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.table.lock().by_name.values().cloned().collect()
    }

    /// Sessions with an open stream.
    pub(crate) fn open(&self) -> usize {
        self.table.lock().by_name.values().filter(|s| s.state.lock().stream.is_some()).count()
    }

    /// Leases of this broker's workers that have ended; jobs that are not sent yet will not be.
    pub(crate) fn cancel(&self, leases: &[Lease], reason: CancelReason, dispatch: &Dispatch) {
        self.end(leases, Some(reason), dispatch);
    }

    /// The same; without a reason, the worker knows.
    pub(crate) fn end(&self, leases: &[Lease], reason: Option<CancelReason>, dispatch: &Dispatch) {
        dispatch.withdraw(leases);
        dispatch.traces().ended(leases.iter().map(|lease| (*lease, reason)), |reason| match reason {
            Some(CancelReason::Cancelled) => Ending::of("cancelled"),
            Some(CancelReason::Timeout) => Ending::failed("timeout", ""),
            Some(CancelReason::LeaseLost) => Ending::failed("lost", ""),
            None => Ending::of("settled"),
        });
        for session in self.all() {
            session.end(leases, reason, dispatch);
        }
    }

    /// Workers went on at another broker, with these leases that they had here before: their streams here end. Returns what they did not take along.
    pub(crate) fn moved(&self, leases: &HashSet<Lease>, before: Instant, dispatch: &Dispatch) -> Vec<Lease> {
        dispatch.traces().moved(leases.iter().copied(), before.into_std());
        self.all().iter().flat_map(|session| session.moved(leases, before, dispatch)).collect()
    }

    /// The worker of this mark, if it is one of this broker's, went on at another broker with all that it has: its stream
    /// here ends. Returns what it did not take along.
    pub(crate) fn went_on_elsewhere(&self, mark: &SessionMark, dispatch: &Dispatch) -> Vec<Lease> {
        let session = self.table.lock().by_mark.get(mark).cloned();
        session.map(|session| session.went_on_elsewhere(mark, dispatch)).unwrap_or_default()
    }

    /// The broker stops: says so on every stream; the jobs that were not sent come back.
    pub(crate) fn drain_all(&self, dispatch: &Dispatch) {
        for session in self.all() {
            Self::drain_one(&session, dispatch);
        }
    }

    /// The same for one session.
    pub(super) fn drain_one(session: &Session, dispatch: &Dispatch) {
        // Spread over half a second, so that the workers do not all come to the other brokers at once.
        let reconnect_after = Duration::from_millis(rand::random::<u64>() % 500);
        dispatch.leave(session.key());
        dispatch.release(session.drain(true, Some(reconnect_after)));
    }

    /// Whether a worker here holds this lease.
    pub(super) fn holds(&self, lease: Lease) -> bool {
        self.all().iter().any(|session| session.holds(lease))
    }

    /// Leases of workers here that were locked have been adopted, or have ended.
    pub(super) fn unlocked(&self, leases: &[Lease]) {
        self.all().iter().for_each(|session| session.unlocked(leases));
    }

    pub(super) fn stream_ended(&self) {
        self.gone.notify_waiters();
    }

    /// Waits until no stream is open.
    pub(crate) async fn all_closed(&self) {
        loop {
            let gone = self.gone.notified();
            if self.open() == 0 {
                return;
            }
            gone.await;
        }
    }

    /// Ends all streams that are left.
    pub(crate) fn end_all(&self) {
        for session in self.all() {
            session.state.lock().closing_now = true;
            session.changed.notify_one();
        }
    }
}
