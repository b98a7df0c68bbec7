//! Step 3 of a job's path, claim: makes one claim at a time, for all task types with ready jobs and workers with
//! capacity. Assigns the jobs to the least loaded session.

mod buffer;
mod claiming;
mod direct;
mod fill_right;
#[cfg(test)]
mod fill_right_tests;
mod limited;
mod prefetch;
mod ready;
mod recipient;
mod state;
mod subscription;
mod type_queue;
mod unsent_memory;
mod window_share;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use howdah_core::job::{Lease, LeasedJob, Tokens, TypeId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{metrics::Metrics, traces::Traces, wake::Wake};
pub(crate) use direct::{Need, Reserved};
pub use fill_right::{FillRight, FillRights};
pub(crate) use recipient::{Offered, Recipient};
use state::{Deliveries, DispatchState};
pub(crate) use unsent_memory::{Charge, UnsentMemory};

/// Time after which a claimed job that no session could take is released.
pub const UNSENT_AFTER: Duration = Duration::from_secs(1);

/// Number of broker ids to remember; a broker gets a new id each time it registers. No statement sent under an older id
/// is still in progress.
const KNOWN_IDS: usize = 8;

/// Number of a session within this broker.
pub type SessionKey = u64;

/// Maximum jobs and bytes of a task type that a session will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Jobs.
    pub jobs: u32,
    /// Bytes of payload and headers.
    pub bytes: u64,
}

/// Number of jobs of one task type, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs.
    pub jobs: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Leases of jobs that could not be sent. They are released, and their attempts do not count.
#[derive(Debug)]
pub enum Unsent {
    /// Leases to release.
    Leases(Vec<Lease>),
    /// Requests an answer after all earlier leases have been released.
    Flush(oneshot::Sender<()>),
    /// Tokens of a claim whose answer was lost. Leases that it may have committed are released.
    Claim(Tokens),
    /// Leases of jobs that expired before their claim.
    Expired(Vec<Lease>),
}

/// Assigns the jobs of one store: holds the windows of the sessions, and the known state of the job queues.
pub struct Dispatch {
    state: Mutex<DispatchState>,
    wake: Wake,
    work: Notify,
    /// Notified when a claim has ended.
    claimed: Notify,
    broker_id: AtomicI32,
    /// Current and earlier ids of this broker. A statement may have been sent under an earlier id.
    broker_ids: Mutex<Vec<i32>>,
    unsent: mpsc::UnboundedSender<Unsent>,
    unsent_memory: Arc<UnsentMemory>,
    left_over_announced: Mutex<Option<std::time::Instant>>,
    /// Task types with a limit. Their claims compute how many jobs they may take.
    limited: ArcSwap<HashSet<TypeId>>,
    /// Task types that wait until their rate limit, brake or locked limit allows another claim, with the time of that claim.
    waits_for_rate: Mutex<HashMap<TypeId, tokio::time::Instant>>,
    traces: Traces,
    metrics: Arc<Metrics>,
}

impl Dispatch {
    /// Creates a dispatch without windows. Jobs that could not be sent go to `unsent`; jobs that wait to be sent use
    /// `unsent_memory`.
    pub(crate) fn new(
        broker_id: i32,
        wake: Wake,
        (unsent, unsent_memory): (mpsc::UnboundedSender<Unsent>, Arc<UnsentMemory>),
        traces: Traces,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            state: Mutex::default(),
            wake,
            work: Notify::new(),
            claimed: Notify::new(),
            broker_id: AtomicI32::new(broker_id),
            broker_ids: Mutex::new(vec![broker_id]),
            unsent,
            unsent_memory,
            left_over_announced: Mutex::default(),
            limited: ArcSwap::default(),
            waits_for_rate: Mutex::default(),
            traces,
            metrics,
        }
    }

    /// Returns the memory budget of jobs that wait to be sent.
    pub(crate) fn unsent_memory(&self) -> &Arc<UnsentMemory> {
        &self.unsent_memory
    }

    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Returns this broker's id in the database.
    pub fn broker_id(&self) -> i32 {
        self.broker_id.load(Ordering::Acquire)
    }

    /// Returns the current and earlier ids of this broker. Leases may exist under an earlier id: the claim was
    /// committed, but its answer came later.
    pub(crate) fn broker_ids(&self) -> Vec<i32> {
        self.broker_ids.lock().clone()
    }

    /// Sets the id under which the broker has registered again.
    pub(crate) fn set_broker_id(&self, id: i32) {
        self.broker_id.store(id, Ordering::Release);
        let mut ids = self.broker_ids.lock();
        ids.push(id);
        let old = ids.len().saturating_sub(KNOWN_IDS);
        ids.drain(..old);
    }

    /// Replaces the set of paused task types.
    pub(crate) fn pause(&self, paused: HashSet<TypeId>) {
        let buffer = self.with(|state| state.pause(paused));
        self.release(buffer);
        self.work.notify_one();
    }

    /// Returns the task types that workers of this broker subscribe to, or wait for in a `PullJobs` call.
    pub(crate) fn subscribed(&self) -> Vec<TypeId> {
        self.state.lock().subscribed()
    }

    /// Returns the number of workers of this broker per task type that subscribe to it, or wait for it in a `PullJobs`
    /// call.
    pub(crate) fn workers(&self) -> HashMap<TypeId, usize> {
        self.state.lock().workers()
    }

    pub(crate) fn is_paused(&self, type_id: TypeId) -> bool {
        self.state.lock().is_paused(type_id)
    }

    /// Returns the number of jobs of a task type that were claimed since its first worker came to this broker.
    pub(crate) fn claimed_total(&self, type_id: TypeId) -> u64 {
        self.state.lock().claimed_total(type_id)
    }

    /// Opens, resizes or (with 0 jobs) closes a window. `held` is the load that the session already holds. `fill_right`
    /// is set if several stores serve the window: the right to fill it, and the number of this store.
    pub(crate) fn set_window(
        self: &Arc<Self>,
        session: &Arc<dyn Recipient>,
        type_id: TypeId,
        window: Window,
        held: Load,
        fill_right: Option<(Arc<FillRight>, usize)>,
    ) {
        let of = fill_right.as_ref().map(|(fill_right, store_no)| (fill_right, *store_no));
        let assigned = self.with(|state| state.set_window(session, type_id, window, held, of));
        self.deliver(assigned);
        if let Some(fill_right) = fill_right {
            self.join(session.key(), type_id, fill_right);
        }
        self.work.notify_one();
    }

    pub(crate) fn windows(&self, session: SessionKey) -> Vec<(TypeId, Window)> {
        self.state.lock().windows(session)
    }

    /// Returns the rank below which all jobs of a task type have been claimed, as far as this broker knows.
    pub(crate) fn claimed_up_to(&self, type_id: TypeId) -> i64 {
        self.state.lock().claimed_up_to(type_id)
    }

    /// Removes all windows of a session.
    pub(crate) fn remove_session(&self, session: SessionKey) {
        let buffer = self.with(|state| state.remove_session(session));
        self.release(buffer);
    }

    /// Subtracts a load that the session no longer holds, and assigns jobs to the free capacity.
    pub(crate) fn free(&self, session: SessionKey, type_id: TypeId, load: Load) {
        let (assigned, concerns_claims) =
            self.with(|state| (state.free(session, type_id, load), state.concerns_claims(type_id)));
        if concerns_claims {
            self.work.notify_one();
        }
        self.deliver(assigned);
    }

    /// Counts a load in the session's windows again, because the outcomes were not written.
    pub(crate) fn hold(&self, session: SessionKey, type_id: TypeId, load: Load) {
        self.with(|state| state.hold(session, type_id, load));
    }

    /// Drops unassigned jobs whose leases have ended.
    pub(crate) fn withdraw(&self, leases: &[Lease]) {
        self.with(|state| state.withdraw(leases));
        self.work.notify_one();
    }

    /// Sets whether a session is stalled, because its worker does not read the stream. A stalled session gets no jobs.
    pub(crate) fn stall(&self, session: SessionKey, stalled: bool) {
        self.with(|state| state.stall(session, stalled));
        if !stalled {
            self.work.notify_one();
        }
    }

    /// Stops claiming, and releases jobs that are not assigned yet.
    pub(crate) fn close(&self) {
        let buffer = self.with(DispatchState::close);
        self.release(buffer);
        self.work.notify_one();
    }

    /// Registers a `PullJobs` call that waits for ready jobs of these task types.
    pub fn wait_for(&self, types: &[TypeId]) -> Waiter<'_> {
        let notify = Arc::new(Notify::new());
        self.state.lock().add_waiter(types, &notify);
        Waiter { dispatch: self, types: types.to_vec(), notify }
    }

    /// Waits until all jobs that could not be sent have been released.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.unsent.send(Unsent::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }

    /// Releases jobs that could not be sent.
    pub(crate) fn release(&self, jobs: Vec<LeasedJob>) {
        if jobs.is_empty() {
            return;
        }
        self.metrics.unsent.inc_by(jobs.len() as u64);
        // Sending fails only while the broker stops. Then other brokers rescue its leases.
        let _ = self.unsent.send(Unsent::Leases(jobs.into_iter().map(|j| j.lease).collect()));
    }

    fn deliver(&self, assigned: Deliveries) {
        self.offer(assigned).wake();
    }

    fn offer(&self, assigned: Deliveries) -> Offered {
        let offered = assigned.into_iter().map(|(session, jobs)| {
            // A session that has ended in the meantime refuses the jobs.
            let refused = session.clone().offer(jobs, self);
            self.release(refused);
            session
        });
        Offered::to(offered.collect())
    }
}

/// A `PullJobs` call that waits for jobs.
pub struct Waiter<'a> {
    dispatch: &'a Dispatch,
    types: Vec<TypeId>,
    notify: Arc<Notify>,
}

impl Waiter<'_> {
    /// Waits until jobs may be ready. Returns immediately if a notification came before the wait.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.dispatch.state.lock().remove_waiter(&self.types, &self.notify);
    }
}
