//! Step 3, claim and deal: one claim at a time, for every type that has ready jobs and workers with capacity. The jobs
//! are dealt to the least loaded session.

mod ahead;
mod claiming;
mod direct;
mod hand;
mod limited;
mod ready;
mod recipient;
mod seat;
mod state;
mod subscription;
mod turn;
#[cfg(test)]
mod turn_tests;
mod type_queue;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    job::{Lease, LeasedJob, Tokens, TypeId},
    metrics::Metrics,
    traces::Traces,
    wake::Wake,
};
pub(crate) use direct::{Need, Reserved};
pub(crate) use recipient::{Offered, Recipient};
use state::{Deliveries, DispatchState};
pub(crate) use turn::{Turn, Turns};

/// A claimed job that no session could take within this time is released.
pub(crate) const UNSENT_AFTER: Duration = Duration::from_secs(1);

/// How many of its ids a broker knows. Nothing that was sent under an older one is still on its way.
const KNOWN_IDS: usize = 8;

/// A session's number within this broker.
pub type SessionKey = u64;

/// How many jobs and bytes of a type a session will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Jobs.
    pub jobs: u32,
    /// Bytes of payload and headers.
    pub bytes: u64,
}

/// Jobs and bytes, of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs.
    pub jobs: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Leases of jobs that could not be sent: they are released, and their attempts do not count.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// These leases.
    Leases(Vec<Lease>),
    /// Answer when all leases before have been released.
    Flush(oneshot::Sender<()>),
    /// Whatever a claim with these tokens may have committed; its answer was lost.
    Claim(Tokens),
    /// These have expired.
    Expired(Vec<Lease>),
}

/// The sessions' windows, and the known state of the queues.
pub struct Dispatch {
    state: Mutex<DispatchState>,
    wake: Wake,
    work: Notify,
    /// A claim has ended.
    claimed: Notify,
    broker_id: AtomicI32,
    /// The same, and those before it: a statement may have been sent under one of them.
    broker_ids: Mutex<Vec<i32>>,
    unsent: mpsc::UnboundedSender<Unsent>,
    told_of_left_over: Mutex<Option<std::time::Instant>>,
    /// Types with a limit on claims.
    limited: ArcSwap<HashSet<TypeId>>,
    /// Types that wait until their rate allows more.
    waits_for_rate: Mutex<HashSet<TypeId>>,
    traces: Traces,
    metrics: Arc<Metrics>,
}

impl Dispatch {
    /// No session has a window yet. Jobs that could not be sent go to `unsent`.
    pub(crate) fn new(
        broker_id: i32,
        wake: Wake,
        unsent: mpsc::UnboundedSender<Unsent>,
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
            told_of_left_over: Mutex::default(),
            limited: ArcSwap::default(),
            waits_for_rate: Mutex::default(),
            traces,
            metrics,
        }
    }

    /// The spans of attempts.
    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// This broker's id in the database.
    pub fn broker_id(&self) -> i32 {
        self.broker_id.load(Ordering::Acquire)
    }

    /// The same, and the ids that it had before. Leases may be under them: a claim was committed, its answer came later.
    pub(crate) fn broker_ids(&self) -> Vec<i32> {
        self.broker_ids.lock().clone()
    }

    /// The broker has registered again, under this id.
    pub(crate) fn set_broker_id(&self, id: i32) {
        self.broker_id.store(id, Ordering::Release);
        let mut ids = self.broker_ids.lock();
        ids.push(id);
        let old = ids.len().saturating_sub(KNOWN_IDS);
        ids.drain(..old);
    }

    /// From now on exactly these types are paused.
    pub(crate) fn pause(&self, paused: HashSet<TypeId>) {
        let hand = self.with(|state| state.pause(paused));
        self.release(hand);
        self.work.notify_one();
    }

    /// The types that workers here are subscribed to, or wait for in a call.
    pub(crate) fn subscribed(&self) -> Vec<TypeId> {
        self.state.lock().subscribed()
    }

    /// How many workers here are subscribed to each type, or wait for it in a call.
    pub(crate) fn workers(&self) -> HashMap<TypeId, usize> {
        self.state.lock().workers()
    }

    /// Whether a type is paused.
    pub(crate) fn is_paused(&self, type_id: TypeId) -> bool {
        self.state.lock().is_paused(type_id)
    }

    /// How many jobs of a type were claimed since its first worker came here.
    pub(crate) fn brought(&self, type_id: TypeId) -> u64 {
        self.state.lock().brought(type_id)
    }

    /// Opens, resizes or (with 0 jobs) closes a window; `held` are leases that the session has already. With a turn, this is
    /// the engine of that number of those that deal to the window.
    pub(crate) fn set_window(
        self: &Arc<Self>,
        session: &Arc<dyn Recipient>,
        type_id: TypeId,
        window: Window,
        held: Load,
        turn: Option<(Arc<Turn>, usize)>,
    ) {
        let of = turn.as_ref().map(|(turn, engine)| (turn, *engine));
        let dealt = self.with(|state| state.set_window(session, type_id, window, held, of));
        self.deliver(dealt);
        if let Some(turn) = turn {
            self.join(session.key(), type_id, turn);
        }
        self.work.notify_one();
    }

    /// The windows of a session.
    pub(crate) fn windows(&self, session: SessionKey) -> Vec<(TypeId, Window)> {
        self.state.lock().windows(session)
    }

    /// The rank below which all jobs of a type have been claimed, as far as this broker knows.
    pub(crate) fn claimed_up_to(&self, type_id: TypeId) -> i64 {
        self.state.lock().claimed_up_to(type_id)
    }

    /// The session has no windows any more.
    pub(crate) fn leave(&self, session: SessionKey) {
        let hand = self.with(|state| state.leave(session));
        self.release(hand);
    }

    /// The session holds less.
    pub(crate) fn free(&self, session: SessionKey, type_id: TypeId, load: Load) {
        let (dealt, concerns_claims) =
            self.with(|state| (state.free(session, type_id, load), state.concerns_claims(type_id)));
        if concerns_claims {
            self.work.notify_one();
        }
        self.deliver(dealt);
    }

    /// The session holds more again: a settle had no effect.
    pub(crate) fn hold(&self, session: SessionKey, type_id: TypeId, load: Load) {
        self.with(|state| state.hold(session, type_id, load));
    }

    /// These leases have ended: jobs that are not dealt yet are dropped.
    pub(crate) fn withdraw(&self, leases: &[Lease]) {
        self.with(|state| state.withdraw(leases));
        self.work.notify_one();
    }

    /// A session that does not read gets no jobs until it does.
    pub(crate) fn stall(&self, session: SessionKey, stalled: bool) {
        self.with(|state| state.stall(session, stalled));
        if !stalled {
            self.work.notify_one();
        }
    }

    /// Stops claiming; jobs that are not dealt yet are released.
    pub(crate) fn close(&self) {
        let hand = self.with(DispatchState::close);
        self.release(hand);
        self.work.notify_one();
    }

    /// A waiter for ready jobs of these types, for calls without a stream.
    pub(crate) fn wait_for(&self, types: &[TypeId]) -> Waiter<'_> {
        let bell = Arc::new(Notify::new());
        self.state.lock().add_waiter(types, &bell);
        Waiter { dispatch: self, types: types.to_vec(), bell }
    }

    /// Waits until all jobs that could not be sent have been released.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.unsent.send(Unsent::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }

    /// These jobs could not be sent.
    pub(crate) fn release(&self, jobs: Vec<LeasedJob>) {
        if jobs.is_empty() {
            return;
        }
        self.metrics.unsent.inc_by(jobs.len() as u64);
        // The receiver lives as long as the broker. If it is gone, so is the broker, and other brokers rescue its
        // leases.
        let _ = self.unsent.send(Unsent::Leases(jobs.into_iter().map(|j| j.lease).collect()));
    }

    fn deliver(&self, dealt: Deliveries) {
        self.offer(dealt).wake();
    }

    fn offer(&self, dealt: Deliveries) -> Offered {
        let offered = dealt.into_iter().map(|(session, jobs)| {
            // The session may have gone since.
            let refused = session.clone().offer(jobs, self);
            self.release(refused);
            session
        });
        Offered::to(offered.collect())
    }
}

/// A call that waits for jobs.
pub(crate) struct Waiter<'a> {
    dispatch: &'a Dispatch,
    types: Vec<TypeId>,
    bell: Arc<Notify>,
}

impl Waiter<'_> {
    /// Waits until there may be jobs. A signal while nobody waited is remembered.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.dispatch.state.lock().remove_waiter(&self.types, &self.bell);
    }
}
