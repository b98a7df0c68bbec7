//! Step 4, push: a worker's session with its windows, its leases and its outgoing messages. A session outlives its
//! stream: within the grace time the worker may resume it, at this broker or at another one. A worker that is silent
//! for its liveness counts as lost (`heartbeat`).

mod activity;
mod attach;
mod detach;
mod heartbeat;
mod id;
mod message;
mod outbox;
mod permit;
pub mod pull;
pub mod reader;
mod sending;
mod stream;
mod table;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU8},
    time::Duration,
};

use howdah_core::job::{Lease, LeasedJob, SettleStatus, Started, TypeId};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Notify, time::Instant};

use activity::Activity;
pub(crate) use activity::Changed;
pub use activity::ClientInfo;
pub use heartbeat::{Heartbeat, ping_interval};
pub use id::SessionId;
pub use message::{Answer, CancelReason, ClientMessage, ServerMessage, SubscribeArgs, WindowArgs};
pub use outbox::{Outbox, watch_unsent};
pub use pull::{Pulling, Pulls, Unsent};
pub use stream::{SessionContext, first_message, serve, serve_share};
pub(crate) use table::Sessions;
pub use table::StoreShare;

use crate::{
    access::Caller,
    dispatch::{Dispatch, Load, Recipient, SessionKey},
    wake::SessionMark,
};
use outbox::UnsentWatch;
use reader::Settling;

/// Maximum bytes of a job in a message besides its payload and headers: numbers and times, the name of the task type
/// (200), the trace context (712), and the framing of 64 headers.
pub const JOB_OVERHEAD: u64 = 2_048;

/// Number of bytes of the hash that lists show as the worker id.
const PUBLIC_ID_BYTES: usize = 8;

/// The session of one worker.
pub struct Session {
    key: SessionKey,
    /// Constant part of the session id. A client that knows the id can take over the session, so logs omit it.
    random: String,
    /// Worker id in lists and logs: a hash of the session id that does not reveal it.
    public_id: String,
    /// Kind of change since the last report of the session (a `Changed` value).
    changed_since: AtomicU8,
    /// Caller of the current or the last stream.
    caller: Mutex<Caller>,
    state: Mutex<State>,
    /// Notified when there is a message to send or the stream ends.
    changed: Notify,
    /// Notified when answers were sent to the worker.
    answered: Notify,
    unsent_watch: Arc<UnsentWatch>,
    /// Settle messages that are being written to Postgres.
    settling: Settling,
}

/// End of the current stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    Open,
    /// The worker has closed its side: the stream ends after all answers were sent.
    ByWorker,
    /// The broker ends the stream after the queued messages were sent.
    ByBroker,
}

/// Drain of the current stream. A draining stream gets no more jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Drain {
    #[default]
    No,
    /// The worker has asked for it, or its credential has ended.
    Requested,
    /// The broker stops: the worker resumes at another broker with its leases.
    Shutdown,
}

/// Reason why a worker is no longer on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// The worker sent nothing within its liveness.
    Silent,
    /// The worker has resumed the session at another broker.
    Moved,
}

#[derive(Default)]
struct State {
    /// Number of the current stream; `None` after it broke.
    stream: Option<u64>,
    /// Number of streams that the session has had so far.
    streams: u64,
    /// Generation in the session id of the latest `Welcome`, which may not be sent yet.
    generation: u32,
    /// Mark of the session id with the current generation.
    mark: SessionMark,
    held: HashMap<i64, Held>,
    outbox: Outbox,
    /// Outcomes, extensions and progress reports that were received and are not answered yet.
    unanswered: usize,
    closing: Closing,
    drain: Drain,
    /// Reason why the worker is no longer on the current stream. The stream ends without its queued messages.
    gone: Option<Gone>,
    /// True while the worker does not read or its outbox is full. It gets no jobs until it has read.
    stalled: bool,
    /// True if the session was removed and can no longer be resumed here.
    ended: bool,
    max_message_bytes: u64,
    /// Maximum silence of the worker; `None` before the first stream.
    liveness: Option<Duration>,
    activity: Activity,
}

/// A lease that the worker holds.
#[derive(Clone, Copy)]
struct Held {
    token: i64,
    type_id: TypeId,
    bytes: u64,
    /// True while the outcome is being written: the lease counts in no window and is not released.
    settling: bool,
    /// True while another transaction has locked the lease. This broker has not adopted it yet, and another broker may
    /// own it.
    locked: bool,
    since: Instant,
    /// Start of the attempt; `None` if the lease was adopted from an older stream.
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

    /// Returns the caller of the current or the last stream.
    fn caller(&self) -> Caller {
        self.caller.lock().clone()
    }

    /// Removes ended leases from the session. With a reason, queues a `Cancel` for jobs that were already sent.
    pub(crate) fn end(&self, leases: &[Lease], reason: Option<CancelReason>, dispatch: &Dispatch) {
        let mut freed = Loads::default();
        {
            let mut state = self.state.lock();
            let mut cancelled = Vec::new();
            for lease in leases {
                if state.held.get(&lease.id).is_some_and(|held| held.token == lease.token)
                    && let Some(held) = state.held.remove(&lease.id)
                {
                    if !held.settling {
                        freed.add(held.type_id, held.bytes);
                    }
                    if !state.outbox.withdraw(*lease) {
                        cancelled.push(*lease);
                    }
                }
            }
            if let Some(reason) = reason
                && !cancelled.is_empty()
            {
                state.outbox.add_cancelled(cancelled, reason);
            }
        }
        self.note(Changed::Figures);
        self.changed.notify_one();
        freed.free(dispatch, self.key);
    }

    /// Queues the answers to outcomes that were being written. If the session has ended, returns the leases whose
    /// outcomes could not be written. No worker holds them any more, so the caller must fail them.
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

    /// Queues a `Drain`, because the worker asked for it, its credential has ended, or the broker stops. A worker that
    /// asked earlier and still holds jobs gets a second `Drain` on shutdown, and takes its jobs to another broker.
    /// Returns the unsent jobs.
    pub(crate) fn drain(&self, shutdown: bool, reconnect_after: Option<Duration>) -> Vec<LeasedJob> {
        let unsent = {
            let mut state = self.state.lock();
            if state.stream.is_none()
                || state.drain == Drain::Shutdown
                || (state.drain == Drain::Requested && !shutdown)
            {
                return Vec::new();
            }
            state.drain = if shutdown { Drain::Shutdown } else { Drain::Requested };
            let unsent = state.take_unsent();
            state.outbox.add_message(ServerMessage::Drain { shutdown, reconnect_after });
            unsent
        };
        self.note(Changed::Windows);
        self.changed.notify_one();
        unsent
    }

    /// Returns the held leases that are not being settled.
    pub(crate) fn held(&self) -> Vec<Lease> {
        self.state.lock().held()
    }

    /// Returns the held leases that are not being settled and that this broker owns.
    pub(crate) fn owned(&self) -> Vec<Lease> {
        let state = self.state.lock();
        let owned = state.held.iter().filter(|(_, held)| !held.settling && !held.locked);
        owned.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// Returns the leases that this broker has owned since before `time` and that are not being settled.
    pub(crate) fn held_before(&self, time: Instant) -> Vec<Lease> {
        let state = self.state.lock();
        let held = state.held.iter().filter(|(_, held)| !held.settling && !held.locked && held.since < time);
        held.map(|(&id, held)| Lease { id, token: held.token }).collect()
    }

    /// Marks these leases as unlocked: this broker has adopted them, or they have ended.
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

    /// Returns the number of held leases.
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
        if state.stream.is_none() || state.drain != Drain::No || state.gone == Some(Gone::Moved) {
            return jobs;
        }
        let since = Instant::now();
        for job in &jobs {
            let (token, type_id, bytes) = (job.lease.token, job.type_id, job.weight);
            let held =
                Held { token, type_id, bytes, settling: false, locked: false, since, started: Some(job.started) };
            // An earlier lease of this job has ended without a notice to this session, so its slot in the window is
            // freed.
            if let Some(lost) = state.held.insert(job.lease.id, held)
                && !lost.settling
            {
                freed.add(lost.type_id, lost.bytes);
            }
        }
        let charge = || dispatch.unsent_memory().charge(self.caller().principal());
        if state.outbox.add_jobs(jobs, charge) {
            self.unsent_watch.add(&self);
        }
        let is_full = state.outbox.is_full();
        drop(state);
        if is_full {
            // The caller of this function wakes the stream, which ends the stall when the worker has read enough jobs.
            dispatch.stall(self.key, true);
            self.state.lock().stalled = true;
        }
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

    /// Takes the unsent jobs out of the outbox. The session no longer holds them.
    fn take_unsent(&mut self) -> Vec<LeasedJob> {
        let unsent = self.outbox.take_jobs();
        for job in &unsent {
            self.held.remove(&job.lease.id);
        }
        unsent
    }
}

/// Jobs and bytes by task type, to be freed in the session's windows or to be counted in them again.
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
