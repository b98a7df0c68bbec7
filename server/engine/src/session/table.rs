//! Sessions of this broker, by id.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use howdah_core::job::{Lease, TaskTypeName};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{CancelReason, Closing, Pulls, Session, SessionId, outbox::UnsentWatch};
use crate::{
    access::Caller,
    dispatch::{Dispatch, FillRight, FillRights, Recipient as _},
    traces::Ending,
    wake::SessionMark,
};

/// Name of a session: its principal and the constant part of its id. Two principals that send the same id have separate
/// sessions.
type SessionName = (Arc<str>, String);

/// All sessions that have a stream or may be resumed.
#[derive(Default)]
pub struct Sessions {
    table: Mutex<Table>,
    next_key: AtomicU64,
    unsent_watch: Arc<UnsentWatch>,
    gone: Notify,
    /// Calls of clients that have no session (`PullJobs`).
    pub pulls: Pulls,
}

#[derive(Default)]
struct Table {
    by_name: HashMap<SessionName, Arc<Session>>,
    /// Sessions by the mark of their current generation.
    by_mark: HashMap<SessionMark, Arc<Session>>,
}

impl Sessions {
    pub(super) fn unsent_watch(&self) -> Arc<UnsentWatch> {
        self.unsent_watch.clone()
    }

    /// Returns the caller's session with this id, or a new session, and the number of its new stream. If another broker
    /// issued the id, also returns the mark by which that broker knows the session. `next_generation` above 0 sets the
    /// generation. Returns `None` if the session already has a later generation.
    pub(super) fn get_or_new(
        &self,
        caller: &Caller,
        id: Option<SessionId>,
        next_generation: u32,
    ) -> Option<(Arc<Session>, u64, Option<SessionMark>)> {
        let is_new = id.as_ref().is_none_or(|id| id.generation == 0);
        let id = id.unwrap_or_else(SessionId::random);
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
        if next_generation > 0 && session.generation() > next_generation {
            return None;
        }
        *session.caller.lock() = caller.clone();
        let given_here = table.by_mark.remove(&session.mark()).is_some() && session.generation() == id.generation;
        let stream = session.next_stream(&id, principal, next_generation);
        table.by_mark.insert(session.mark(), session.clone());
        Some((session, stream, (!is_new && !given_here).then(|| id.mark(principal))))
    }

    pub(super) fn find(&self, caller: &Caller, id: &SessionId) -> Option<Arc<Session>> {
        self.table.lock().by_name.get(&(caller.principal().clone(), id.random.clone())).cloned()
    }

    /// Removes a session whose latest stream was `stream` and has ended. Does nothing if the session has a newer
    /// stream.
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

    /// Returns all sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.table.lock().by_name.values().cloned().collect()
    }

    /// Returns the number of sessions with an open stream.
    pub(crate) fn open(&self) -> usize {
        self.table.lock().by_name.values().filter(|s| s.state.lock().stream.is_some()).count()
    }

    /// Ends leases of this broker's workers and tells the workers why. Unsent jobs are dropped.
    pub(crate) fn cancel(&self, leases: &[Lease], reason: CancelReason, dispatch: &Dispatch) {
        self.end(leases, Some(reason), dispatch);
    }

    /// Ends leases of this broker's workers. With a reason, the workers get a `Cancel`. No reason means that the jobs
    /// were settled, so the workers need no notice.
    pub(crate) fn end(&self, leases: &[Lease], reason: Option<CancelReason>, dispatch: &Dispatch) {
        dispatch.withdraw(leases);
        dispatch.traces().ended(leases.iter().map(|lease| (*lease, reason)), |reason| match reason {
            Some(CancelReason::Cancelled) => Ending::new("cancelled"),
            Some(CancelReason::Timeout) => Ending::failed("timeout", ""),
            Some(CancelReason::LeaseLost) => Ending::failed("lost", ""),
            None => Ending::new("settled"),
        });
        for session in self.all() {
            session.end(leases, reason, dispatch);
        }
    }

    /// Ends the streams of workers that have resumed at another broker with some of these leases, if they held them
    /// here before `before`. Returns the workers' other leases here, which never reached the workers.
    pub(crate) fn leases_moved(&self, leases: &HashSet<Lease>, before: Instant, dispatch: &Dispatch) -> Vec<Lease> {
        dispatch.traces().moved(leases.iter().copied(), before.into_std());
        self.all().iter().flat_map(|session| session.leases_moved(leases, before, dispatch)).collect()
    }

    /// Ends the stream of the session with this mark, if this broker has it: its worker has resumed at another broker
    /// with all its leases. Returns the leases that never reached the worker.
    pub(crate) fn resumed_elsewhere(&self, mark: &SessionMark, dispatch: &Dispatch) -> Vec<Lease> {
        let session = self.table.lock().by_mark.get(mark).cloned();
        session.map(|session| session.resumed_elsewhere(mark, dispatch)).unwrap_or_default()
    }

    /// Sends `Drain` on every stream because the broker stops, and releases unsent jobs.
    pub(crate) fn drain_all(&self, dispatch: &Dispatch) {
        for session in self.all() {
            Self::drain_one(&session, dispatch);
        }
    }

    /// Sends `Drain` to a session and releases its unsent jobs.
    pub(super) fn drain_one(session: &Session, dispatch: &Dispatch) {
        // Chooses a random delay below half a second, so that the workers do not all reach the other brokers at the
        // same time.
        let reconnect_after = Duration::from_millis(rand::random::<u64>() % 500);
        dispatch.remove_session(session.key());
        dispatch.release(session.drain(true, Some(reconnect_after)));
    }

    /// Returns whether a worker of this broker holds this lease.
    pub(super) fn holds(&self, lease: Lease) -> bool {
        self.all().iter().any(|session| session.holds(lease))
    }

    /// Marks leases as unlocked in all sessions: they were adopted, or have ended.
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

    /// Ends all remaining streams after their queued messages were sent.
    pub(crate) fn end_all(&self) {
        for session in self.all() {
            session.state.lock().closing = Closing::ByBroker;
            session.changed.notify_one();
        }
    }
}

/// Data that a session in one store shares with the worker's sessions in the other stores.
#[derive(Clone)]
pub struct StoreShare {
    /// Position of the store in the stream's list of stores.
    pub store_no: usize,
    /// Rights to fill the worker's windows (window shares). One store at a time has the right to fill a window.
    pub rights: Arc<FillRights>,
    /// Generation in the session id of the next `Welcome`, the same in all stores.
    pub next_generation: u32,
}

impl StoreShare {
    /// Returns the right to fill the window of a task type, and the number of this store.
    pub(super) fn right(&self, task_type: &TaskTypeName) -> (Arc<FillRight>, usize) {
        (self.rights.right(task_type), self.store_no)
    }

    /// Reports that the worker's leases in this store are counted in their windows. Until then they count in every
    /// window.
    pub(super) fn attached(&self) {
        self.rights.known(self.store_no);
    }
}

impl Sessions {
    /// Returns the generation of the caller's session with this id; 0 if there is no such session.
    pub fn generation_of(&self, caller: &Caller, id: &SessionId) -> u32 {
        self.find(caller, id).map_or(0, |session| session.generation())
    }
}
