//! Step 4, one worker: its windows, the leases it holds, and what is on its way to it. A session
//! survives its stream: within the grace time the worker may come back, here or at another broker.

mod attach;
mod context;
mod detach;
mod message;
mod outbox;
mod pull;
mod reader;
mod sending;
mod stream;
mod table;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub use context::SessionContext;
pub use message::{Answer, CancelReason, ClientMessage, ServerMessage, SubscribeArgs, WindowArgs};
pub(crate) use outbox::watch_unsent;
pub use stream::serve;
pub(crate) use table::Sessions;

use crate::{
    dispatch::{Dispatch, Load, Recipient, SessionKey},
    job::{Lease, LeasedJob, SettleStatus, TypeId},
};
use outbox::{Outbox, UnsentWatch};

/// What a job costs in a message besides payload and headers, at most: numbers and times, the type's
/// name (200), the trace context (712), and what framing 64 headers takes.
const JOB_OVERHEAD: u64 = 2_048;

/// One worker.
pub struct Session {
    key: SessionKey,
    id: String,
    state: Mutex<State>,
    /// Something to send, or the end.
    changed: Notify,
    /// Answers were sent.
    answered: Notify,
    unsent_watch: Arc<UnsentWatch>,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own; no two exclude each other")]
struct State {
    /// Which stream it is on; `None`: the stream broke.
    stream: Option<u64>,
    /// Streams it has had.
    streams: u64,
    held: HashMap<i64, Held>,
    outbox: Outbox,
    /// Outcomes, extensions and progress reports that were received, and whose answers are not sent yet.
    unanswered: usize,
    /// The worker will send no more; end the stream when all is answered.
    closing: bool,
    /// The broker ends: send what is there, no more.
    closing_now: bool,
    /// No more jobs.
    draining: bool,
    /// It does not read: nothing is dealt to it until it does.
    stalled: bool,
    /// Its worker went on with it at another broker.
    moved: bool,
    /// Nobody will come back to it.
    ended: bool,
    max_message_bytes: u64,
}

/// A lease that the worker holds.
#[derive(Clone, Copy)]
struct Held {
    token: i64,
    type_id: TypeId,
    bytes: u64,
    /// Its outcome is being written: it counts in no window, and is not given back.
    settling: bool,
    since: Instant,
}

impl Session {
    fn new(key: SessionKey, id: String, unsent_watch: Arc<UnsentWatch>) -> Self {
        Self { key, id, state: Mutex::default(), changed: Notify::new(), answered: Notify::new(), unsent_watch }
    }

    /// What the worker resumes it by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Leases that are over; with a reason, the worker is told to stop.
    pub(crate) fn end(&self, leases: &[Lease], reason: Option<CancelReason>, dispatch: &Dispatch) {
        let mut freed = Loads::default();
        {
            let mut state = self.state.lock();
            let mut told = Vec::new();
            for lease in leases {
                if state.held.get(&lease.id).is_some_and(|held| held.token == lease.token)
                    && let Some(held) = state.held.remove(&lease.id)
                {
                    if !held.settling {
                        freed.add(held.type_id, held.bytes);
                    }
                    if !state.outbox.withdraw(*lease) {
                        told.push(*lease);
                    }
                }
            }
            if let Some(reason) = reason
                && !told.is_empty()
            {
                state.outbox.add_cancelled(told, reason);
            }
        }
        self.changed.notify_one();
        freed.free(dispatch, self.key);
    }

    /// What became of outcomes that were being written. Returns leases that nobody holds any more: the
    /// session has ended, and their outcomes could not be written.
    fn settled(&self, answers: Vec<Answer>, dispatch: &Dispatch) -> Vec<Lease> {
        let (mut again, mut freed) = (Loads::default(), Loads::default());
        let mut orphans = Vec::new();
        {
            let mut state = self.state.lock();
            for answer in &answers {
                let Some(held) = state.held.get_mut(&answer.lease.id) else { continue };
                if held.token != answer.lease.token {
                    continue;
                }
                if answer.status == Ok(SettleStatus::Unavailable) {
                    held.settling = false;
                    orphans.push(answer.lease);
                    again.add(held.type_id, held.bytes);
                } else if let Some(held) = state.held.remove(&answer.lease.id)
                    && !held.settling
                {
                    freed.add(held.type_id, held.bytes);
                }
            }
            if state.stream.is_some() {
                state.outbox.add_answers(answers);
            }
            if !state.ended {
                orphans.clear();
            }
        }
        self.changed.notify_one();
        again.hold(dispatch, self.key);
        freed.free(dispatch, self.key);
        orphans
    }

    /// Says the broker stops; what is not sent comes back.
    pub(crate) fn drain(&self, shutdown: bool, reconnect_after: Option<Duration>) -> Vec<LeasedJob> {
        let unsent = {
            let mut state = self.state.lock();
            if state.stream.is_none() || state.draining {
                return Vec::new();
            }
            state.draining = true;
            let unsent = state.take_unsent();
            state.outbox.add_message(ServerMessage::Drain { shutdown, reconnect_after });
            unsent
        };
        self.changed.notify_one();
        unsent
    }

    /// Leases held and not being settled.
    pub(crate) fn held(&self) -> Vec<Lease> {
        self.state.lock().held()
    }

    /// Of these, those that it holds since before this time.
    pub(crate) fn held_before(&self, time: Instant) -> Vec<Lease> {
        let state = self.state.lock();
        let held = state.held.iter().filter(|(_, held)| !held.settling && held.since < time);
        held.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    fn holds(&self, lease: Lease) -> bool {
        self.state.lock().held.get(&lease.id).is_some_and(|held| held.token == lease.token)
    }

    /// How many leases it holds.
    pub(crate) fn held_count(&self) -> usize {
        self.state.lock().held.len()
    }
}

impl Recipient for Session {
    fn key(&self) -> SessionKey {
        self.key
    }

    fn max_job_bytes(&self) -> u64 {
        self.state.lock().max_message_bytes.saturating_sub(JOB_OVERHEAD)
    }

    fn offer(self: Arc<Self>, jobs: Vec<LeasedJob>, dispatch: &Dispatch) -> Vec<LeasedJob> {
        let mut freed = Loads::default();
        let mut state = self.state.lock();
        if state.stream.is_none() || state.draining || state.moved {
            return jobs;
        }
        let since = Instant::now();
        for job in &jobs {
            let held = Held { token: job.lease.token, type_id: job.type_id, bytes: job.weight, settling: false, since };
            // An earlier lease of the same job was lost without a word.
            if let Some(lost) = state.held.insert(job.lease.id, held)
                && !lost.settling
            {
                freed.add(lost.type_id, lost.bytes);
            }
        }
        if state.outbox.add_jobs(jobs) {
            self.unsent_watch.add(&self);
        }
        drop(state);
        self.changed.notify_one();
        freed.free(dispatch, self.key);
        Vec::new()
    }
}

impl State {
    fn held(&self) -> Vec<Lease> {
        let held = self.held.iter().filter(|(_, held)| !held.settling);
        held.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// Jobs that were not sent; they are not held any more.
    fn take_unsent(&mut self) -> Vec<LeasedJob> {
        let unsent = self.outbox.take_jobs();
        for job in &unsent {
            self.held.remove(&job.lease.id);
        }
        unsent
    }
}

/// Jobs and bytes by type: what a message frees, or holds again.
#[derive(Default)]
struct Loads(HashMap<TypeId, Load>);

impl Loads {
    fn add(&mut self, type_id: TypeId, bytes: u64) {
        let load = self.0.entry(type_id).or_default();
        load.jobs += 1;
        load.bytes += bytes;
    }

    fn get(&self, type_id: TypeId) -> Load {
        self.0.get(&type_id).copied().unwrap_or_default()
    }

    fn free(self, dispatch: &Dispatch, session: SessionKey) {
        for (type_id, load) in self.0 {
            dispatch.free(session, type_id, load);
        }
    }

    fn hold(self, dispatch: &Dispatch, session: SessionKey) {
        for (type_id, load) in self.0 {
            dispatch.hold(session, type_id, load);
        }
    }
}
