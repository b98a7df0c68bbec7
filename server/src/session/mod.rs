//! Step 4, one worker: its windows, the leases it holds, and the messages on their way to it. A session survives its
//! stream: within the grace time the worker may resume it, here or at another broker.

mod activity;
mod attach;
mod context;
mod detach;
mod id;
mod message;
mod outbox;
mod part;
mod permit;
pub(crate) mod pull;
mod pulls;
pub(crate) mod reader;
mod sending;
mod settling;
mod stream;
mod table;
mod unsent;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU8},
    time::Duration,
};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Notify, time::Instant};

use activity::Activity;
pub(crate) use activity::Changed;
pub use activity::ClientInfo;
pub use context::SessionContext;
pub use id::SessionId;
pub use message::{Answer, CancelReason, ClientMessage, ServerMessage, SubscribeArgs, WindowArgs};
pub(crate) use outbox::{Outbox, watch_unsent};
pub(crate) use part::Part;
pub(crate) use pulls::{Pulling, Pulls};
pub(crate) use sending::ping_at;
pub use stream::serve;
pub(crate) use stream::{first_message, serve_part};
pub(crate) use table::Sessions;
pub(crate) use unsent::Unsent;

use crate::{
    access::Caller,
    dispatch::{Dispatch, Load, Recipient, SessionKey},
    job::{Lease, LeasedJob, SettleStatus, Started, TypeId},
    wake::SessionMark,
};
use outbox::UnsentWatch;
use settling::Settling;

/// The most bytes of a job in a message besides payload and headers: numbers and times, the type's name (200), the
/// trace context (712), and the framing of 64 headers.
pub(crate) const JOB_OVERHEAD: u64 = 2_048;

/// Bytes of the id of a worker that lists show.
const PUBLIC_ID_BYTES: usize = 8;

/// One worker.
pub struct Session {
    key: SessionKey,
    /// The part of its id that stays. Who knows the id may take over the session, so no log has it.
    random: String,
    /// What lists call it: made from the id, and does not tell it.
    public_id: String,
    /// What has changed since it was reported (`Changed`).
    changed_since: AtomicU8,
    /// Whose stream it is on, or was last.
    caller: Mutex<Caller>,
    state: Mutex<State>,
    /// There is something to send, or the stream ends.
    changed: Notify,
    /// Answers were sent.
    answered: Notify,
    unsent_watch: Arc<UnsentWatch>,
    /// Messages with outcomes that are being written.
    settling: Settling,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "these are independent facts")]
struct State {
    /// The number of its stream; `None`: the stream broke.
    stream: Option<u64>,
    /// How many streams it has had.
    streams: u64,
    /// That of its id which the last Welcome has, or will have.
    turn: u32,
    /// Of its id at that turn.
    mark: SessionMark,
    held: HashMap<i64, Held>,
    outbox: Outbox,
    /// Outcomes, extensions and progress reports that were received and not answered yet.
    unanswered: usize,
    /// The worker will send no more; the stream ends when all is answered.
    closing: bool,
    /// The broker ends: only what is queued is sent.
    closing_now: bool,
    /// No more jobs are sent.
    draining: bool,
    /// It was told that the broker stops, and goes elsewhere with what it holds.
    leaving: bool,
    /// The worker does not read: it gets no jobs until it does.
    stalled: bool,
    /// Its worker went on with it at another broker.
    moved: bool,
    /// Nobody will come back to it.
    ended: bool,
    max_message_bytes: u64,
    activity: Activity,
}

/// A lease that the worker holds.
#[derive(Clone, Copy)]
struct Held {
    token: i64,
    type_id: TypeId,
    bytes: u64,
    /// Its outcome is being written: it counts in no window, and is not released.
    settling: bool,
    /// Another transaction has locked it, so it is not adopted yet: it may still be another broker's.
    locked: bool,
    since: Instant,
    /// When its attempt started, if this broker has sent it.
    started: Option<Started>,
}

impl Session {
    fn new(key: SessionKey, random: String, caller: Caller, unsent_watch: Arc<UnsentWatch>) -> Self {
        let public_id = hex::encode(&Sha256::digest(&random)[..PUBLIC_ID_BYTES]);
        Self {
            key,
            random,
            public_id,
            changed_since: AtomicU8::new(Changed::Windows as u8),
            caller: Mutex::new(caller),
            state: Mutex::default(),
            changed: Notify::new(),
            answered: Notify::new(),
            unsent_watch,
            settling: Settling::default(),
        }
    }

    /// Whose stream it is on.
    fn caller(&self) -> Caller {
        self.caller.lock().clone()
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
        self.note(Changed::Figures);
        self.changed.notify_one();
        freed.free(dispatch, self.key);
    }

    /// The answers to outcomes that were being written. Returns leases that nobody holds any more: the session has
    /// ended, and their outcomes could not be written.
    fn settled(&self, answers: Vec<Answer>, dispatch: &Dispatch) -> Vec<Lease> {
        let (mut again, mut freed) = (Loads::default(), Loads::default());
        let mut orphans = Vec::new();
        {
            let mut state = self.state.lock();
            let (state, now) = (&mut *state, Instant::now());
            for answer in &answers {
                let Some(held) = state.held.get_mut(&answer.lease.id) else { continue };
                if held.token != answer.lease.token {
                    continue;
                }
                if answer.status == Ok(SettleStatus::Ok) {
                    state.activity.settled(held.type_id, now);
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
        self.note(Changed::Figures);
        self.changed.notify_one();
        again.hold(dispatch, self.key);
        freed.free(dispatch, self.key);
        orphans
    }

    /// Tells the worker that no more jobs come: because it asked, or because the broker stops. Who asked, and still holds jobs, is
    /// told of the stop, too: it takes them to another broker. Returns jobs that were not sent.
    pub(crate) fn drain(&self, shutdown: bool, reconnect_after: Option<Duration>) -> Vec<LeasedJob> {
        let unsent = {
            let mut state = self.state.lock();
            if state.stream.is_none() || state.leaving || (state.draining && !shutdown) {
                return Vec::new();
            }
            (state.draining, state.leaving) = (true, shutdown);
            let unsent = state.take_unsent();
            state.outbox.add_message(ServerMessage::Drain { shutdown, reconnect_after });
            unsent
        };
        self.note(Changed::Windows);
        self.changed.notify_one();
        unsent
    }

    /// Leases that are held and not being settled.
    pub(crate) fn held(&self) -> Vec<Lease> {
        self.state.lock().held()
    }

    /// The same, without those that are not this broker's yet.
    pub(crate) fn owned(&self) -> Vec<Lease> {
        let state = self.state.lock();
        let owned = state.held.iter().filter(|(_, held)| !held.settling && !held.locked);
        owned.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// Of these, those that are this broker's since before this time.
    pub(crate) fn held_before(&self, time: Instant) -> Vec<Lease> {
        let state = self.state.lock();
        let held = state.held.iter().filter(|(_, held)| !held.settling && !held.locked && held.since < time);
        held.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// These leases are not locked any more: they are this broker's, or have ended.
    fn unlocked(&self, leases: &[Lease]) {
        let mut state = self.state.lock();
        for lease in leases {
            if let Some(held) = state.held.get_mut(&lease.id)
                && held.token == lease.token
            {
                (held.locked, held.since) = (false, Instant::now());
            }
        }
    }

    fn holds(&self, lease: Lease) -> bool {
        self.state.lock().held.get(&lease.id).is_some_and(|held| held.token == lease.token)
    }

    /// The number of leases it holds.
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
            let (token, type_id, bytes) = (job.lease.token, job.type_id, job.weight);
            let held =
                Held { token, type_id, bytes, settling: false, locked: false, since, started: Some(job.started) };
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
        self.note(Changed::Figures);
        freed.free(dispatch, self.key);
        Vec::new()
    }

    fn wake(&self) {
        self.changed.notify_one();
    }
}

impl State {
    fn held(&self) -> Vec<Lease> {
        let held = self.held.iter().filter(|(_, held)| !held.settling);
        held.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// Returns jobs that were not sent; they are not held any more.
    fn take_unsent(&mut self) -> Vec<LeasedJob> {
        let unsent = self.outbox.take_jobs();
        for job in &unsent {
            self.held.remove(&job.lease.id);
        }
        unsent
    }
}

/// Jobs and bytes by type, which a message frees or holds again.
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
