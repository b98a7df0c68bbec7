//! Tests of windows that several stores fill: in any order of events, the held jobs do not exceed the window, and no
//! store waits forever.

mod prefetch; // prefetching
mod direct; // jobs that go direct to a worker of one store
mod passing; // when a store passes on the right to fill a window

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use howdah_core::job::{Lease, LeasedJob, Ready, Started, TaskTypeName, TypeId};
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::{Dispatch, FillRights, Load, Need, Recipient, Reserved, SessionKey, Unsent, UnsentMemory, Window};
use crate::{metrics::Metrics, store::Want, traces::Traces, wake::Wake};

const TYPE: TypeId = 7;
/// Size of a job: the average that dispatch assumes for a task type whose jobs it has not seen.
const BYTES: u64 = 256;
/// Maximum time that a store keeps the right to fill a window in these tests.
const KEPT: Duration = Duration::from_millis(1);
/// Duration of a claim in these tests.
const CLAIM: Duration = Duration::from_millis(1);

/// A worker's session in one store.
struct Session {
    key: SessionKey,
    held: Mutex<Vec<LeasedJob>>,
    woken: AtomicUsize,
}

impl Recipient for Session {
    fn key(&self) -> SessionKey {
        self.key
    }

    fn max_job_bytes(&self) -> u64 {
        u64::MAX
    }

    fn offer(self: Arc<Self>, jobs: Vec<LeasedJob>, _: &Dispatch) -> Vec<LeasedJob> {
        self.held.lock().extend(jobs);
        Vec::new()
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

/// A store with a simulated database, and a session of each worker.
struct TestStore {
    dispatch: Arc<Dispatch>,
    ready: u64,
    next: i64,
    claims: Option<Vec<Want>>,
    direct: Vec<(Reserved, u32)>,
    sessions: Vec<Arc<Session>>,
    unsent: mpsc::UnboundedReceiver<Unsent>,
    now: Instant,
}

fn job(id: i64) -> LeasedJob {
    LeasedJob {
        lease: Lease { id, token: id },
        type_id: TYPE,
        rank: id,
        attempt: 1,
        max_attempts: 1,
        created: SystemTime::UNIX_EPOCH,
        deadline: None,
        deadline_in_ms: None,
        waited_us: 0,
        started: Started { type_id: TYPE, at_us: 0, waited_us: 0 },
        headers: HashMap::new(),
        options: None,
        payload: Bytes::new(),
        dependencies: Vec::new(),
        weight: BYTES,
    }
}

impl TestStore {
    fn new(workers: usize) -> Self {
        let (sender, unsent) = mpsc::unbounded_channel();
        let metrics = Arc::new(Metrics::new());
        let dispatch = Arc::new(Dispatch::new(
            1,
            Wake::new(false),
            (sender, UnsentMemory::new(1 << 30)),
            Traces::default(),
            metrics,
        ));
        let session = |key| Arc::new(Session { key, held: Mutex::default(), woken: AtomicUsize::new(0) });
        let sessions = (0..workers as u64).map(session).collect();
        Self { dispatch, ready: 0, next: 0, claims: None, direct: Vec::new(), sessions, unsent, now: Instant::now() }
    }

    fn enqueue(&mut self, jobs: u64) {
        self.ready += jobs;
        self.dispatch.ready(std::iter::once(Ready { type_id: TYPE, lowest_rank: self.next, jobs }));
    }

    /// Starts a claim if one is due. Returns whether a claim is in progress.
    fn begin(&mut self) -> bool {
        if self.claims.is_none() {
            let wants = self.dispatch.state.lock().next_claim(self.now);
            self.claims = Some(wants).filter(|wants| !wants.is_empty());
        }
        self.claims.is_some()
    }

    fn fetch(&mut self, jobs: u64) -> Vec<LeasedJob> {
        let jobs = jobs.min(self.ready);
        self.ready -= jobs;
        self.next += jobs as i64;
        (self.next - jobs as i64..self.next).map(job).collect()
    }

    /// Completes the claim in progress, and advances the clock of the test by `CLAIM`.
    fn end(&mut self) {
        let Some(wants) = self.claims.take() else { return };
        self.now += CLAIM;
        let jobs = self.fetch(wants[0].jobs as u64);
        let (assigned, unassignable) = self.dispatch.with(|state| state.claimed(&wants, jobs, false, &[], self.now));
        assert!(unassignable.is_empty());
        self.dispatch.deliver(assigned);
    }

    fn fail(&mut self) {
        if let Some(wants) = self.claims.take() {
            self.dispatch.with(|state| state.claim_failed(&wants));
        }
    }

    fn begin_direct(&mut self, jobs: u32) {
        let load = Load { jobs, bytes: BYTES * u64::from(jobs) };
        let needs = [Need { type_id: TYPE, load, heaviest: BYTES }];
        let (direct, reserved) = self.dispatch.reserve(std::iter::once(&needs[..]));
        if direct[0] {
            self.direct.push((reserved, jobs));
        } else {
            self.dispatch.unreserve(reserved);
        }
    }

    fn end_direct(&mut self) {
        let Some((reserved, jobs)) = self.direct.pop() else { return };
        self.ready += u64::from(jobs);
        let jobs = self.fetch(jobs.into());
        self.dispatch.assign_reserved(reserved, jobs).wake();
    }

    /// Settles the job that the worker has held longest.
    fn settle(&mut self, worker: usize) -> bool {
        let session = self.sessions[worker].clone();
        let first = {
            let mut held = session.held.lock();
            (!held.is_empty()).then(|| held.remove(0))
        };
        first.is_some_and(|job| {
            self.dispatch.free(session.key, TYPE, Load { jobs: 1, bytes: job.weight });
            true
        })
    }

    /// Makes jobs ready again that were in the buffer for too long.
    fn put_back(&mut self) {
        let stale = self.dispatch.with(|state| state.take_stale(std::time::Instant::now() + Duration::from_secs(2))).0;
        if !stale.jobs.is_empty() {
            self.enqueue(stale.jobs.len() as u64);
        }
        self.dispatch.with(|state| state.returned(&stale.returning));
        while self.unsent.try_recv().is_ok() {}
    }
}

/// Workers with a window that two or three stores fill.
struct TestStores {
    stores: Vec<TestStore>,
    rights: Vec<Arc<FillRights>>,
    window: u32,
}

fn type_name() -> TaskTypeName {
    TaskTypeName::parse("t").unwrap()
}

impl TestStores {
    fn new(stores: usize, workers: usize, window: u32) -> Self {
        let stores: Vec<TestStore> = (0..stores).map(|_| TestStore::new(workers)).collect();
        let rights = (0..workers).map(|_| FillRights::with_max_hold(vec![0; stores.len()], KEPT)).collect();
        let set = Self { stores, rights, window };
        for worker in 0..workers {
            for store in 0..set.stores.len() {
                set.subscribe(store, worker, Load::default());
            }
            set.rights[worker].open();
        }
        set
    }

    fn subscribe(&self, store: usize, worker: usize, held: Load) {
        let of = &self.stores[store];
        let session: Arc<dyn Recipient> = of.sessions[worker].clone();
        let window = Window { jobs: self.window, bytes: BYTES * u64::from(self.window) };
        let right = (self.rights[worker].right(&type_name()), store);
        of.dispatch.set_window(&session, TYPE, window, held, Some(right));
    }

    fn held(&self, worker: usize) -> usize {
        self.stores.iter().map(|store| store.sessions[worker].held.lock().len()).sum()
    }

    fn check(&self) {
        for worker in 0..self.rights.len() {
            let held = self.held(worker);
            assert!(held <= self.window as usize, "worker {worker} holds {held} jobs; its window is {}", self.window);
        }
    }

    /// Claims in every store until no claim is due. Returns whether any job was assigned.
    fn claim_all(&mut self) -> bool {
        let before: i64 = self.stores.iter().map(|store| store.next).sum();
        loop {
            let mut any = false;
            for store in &mut self.stores {
                if store.begin() {
                    store.end();
                    any = true;
                }
            }
            if !any {
                break;
            }
            self.check();
        }
        self.stores.iter().map(|store| store.next).sum::<i64>() > before
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(usize, u64),
    Begin(usize),
    End(usize),
    Fail(usize),
    BeginDirect(usize, u32),
    EndDirect(usize),
    Settle(usize, usize),
    Stall(usize, usize, bool),
    Reattach(usize, usize),
    PutBack(usize),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let (store, worker) = (0..3_usize, 0..2_usize);
    prop_oneof![
        3 => (store.clone(), 1..6_u64).prop_map(|(e, n)| Step::Enqueue(e, n)),
        4 => store.clone().prop_map(Step::Begin),
        4 => store.clone().prop_map(Step::End),
        1 => store.clone().prop_map(Step::Fail),
        2 => (store.clone(), 1..3_u32).prop_map(|(e, n)| Step::BeginDirect(e, n)),
        2 => store.clone().prop_map(Step::EndDirect),
        6 => (store.clone(), worker.clone()).prop_map(|(e, w)| Step::Settle(e, w)),
        1 => (store.clone(), worker.clone(), any::<bool>()).prop_map(|(e, w, s)| Step::Stall(e, w, s)),
        1 => (store.clone(), worker).prop_map(|(e, w)| Step::Reattach(e, w)),
        1 => store.prop_map(Step::PutBack),
        1 => Just(Step::Wait),
    ]
}

impl TestStores {
    async fn take(&mut self, step: Step) {
        match step {
            Step::Enqueue(e, jobs) => self.stores[e].enqueue(jobs),
            Step::Begin(e) => drop(self.stores[e].begin()),
            Step::End(e) => self.stores[e].end(),
            Step::Fail(e) => self.stores[e].fail(),
            Step::BeginDirect(e, jobs) => self.stores[e].begin_direct(jobs),
            Step::EndDirect(e) => self.stores[e].end_direct(),
            Step::Settle(e, worker) => drop(self.stores[e].settle(worker)),
            Step::Stall(e, worker, stalled) => self.stores[e].dispatch.stall(worker as u64, stalled),
            Step::Reattach(e, worker) => {
                // The session holds the same jobs again when it comes back.
                self.stores[e].dispatch.remove_session(worker as u64);
                self.check();
                let jobs = self.stores[e].sessions[worker].held.lock().len() as u32;
                self.subscribe(e, worker, Load { jobs, bytes: BYTES * u64::from(jobs) });
            }
            Step::PutBack(e) => self.stores[e].put_back(),
            Step::Wait => tokio::time::sleep(2 * KEPT).await,
        }
        self.check();
    }

    /// Completes all claims and direct enqueues in progress, then checks that workers get and settle all jobs.
    async fn finish(&mut self) {
        for store in &mut self.stores {
            (0..2).for_each(|worker| store.dispatch.stall(worker, false));
            store.end();
            while !store.direct.is_empty() {
                store.end_direct();
            }
        }
        for _ in 0..10_000 {
            self.claim_all();
            let mut settled = false;
            for store in &mut self.stores {
                settled |= store.settle(0) | store.settle(1);
            }
            if !settled {
                if self.stores.iter().all(|store| store.ready == 0) {
                    let held = self.stores.iter().map(|e| e.dispatch.state.lock().types[&TYPE].buffer.len());
                    if held.sum::<usize>() == 0 {
                        return;
                    }
                }
                // No worker holds a job, so a poll, a release from the buffer, or the end of a wait must cause
                // progress.
                tokio::time::sleep(2 * KEPT).await;
                for store in &mut self.stores {
                    store.put_back();
                    let jobs = u64::from(store.ready > 0);
                    store.dispatch.ready_here(std::iter::once(Ready { type_id: TYPE, lowest_rank: 0, jobs }));
                }
            }
        }
        let left: Vec<u64> = self.stores.iter().map(|store| store.ready).collect();
        panic!("jobs are left that no worker gets: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_window_of_several_stores_is_never_exceeded_and_no_store_waits_for_ever(
        steps in prop::collection::vec(step(), 1..120),
        window in 1..6_u32,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut set = TestStores::new(3, 2, window);
            for step in steps {
                set.take(step).await;
            }
            set.finish().await;
        });
    }
}
