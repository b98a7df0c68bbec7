//! Windows that several engines deal to: whatever happens in which order, the window holds, and nobody waits for ever.

mod ahead; // what one engine claims before there is room
mod direct; // what goes straight to the workers of one engine
mod passing; // when an engine passes the turn

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::{Dispatch, Load, Need, Recipient, Reserved, SessionKey, Turns, Unsent, Window};
use crate::{
    job::{Lease, LeasedJob, Ready, Started, TaskTypeName, TypeId},
    metrics::Metrics,
    store::Want,
    traces::Traces,
    wake::Wake,
};

const TYPE: TypeId = 7;
/// What a job weighs: what dispatch takes for granted of a type that it does not know yet.
const BYTES: u64 = 256;
/// How long an engine may keep a turn here.
const KEPT: Duration = Duration::from_millis(1);
/// How long a claim takes here.
const CLAIM: Duration = Duration::from_millis(1);

/// A worker's session in one engine.
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

/// An engine, its database, and a session of each worker.
struct Engine {
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
        weight: BYTES,
    }
}

impl Engine {
    fn new(workers: usize) -> Self {
        let (sender, unsent) = mpsc::unbounded_channel();
        let metrics = Arc::new(Metrics::new());
        let dispatch = Arc::new(Dispatch::new(1, Wake::new(false), sender, Traces::default(), metrics));
        let session = |key| Arc::new(Session { key, held: Mutex::default(), woken: AtomicUsize::new(0) });
        let sessions = (0..workers as u64).map(session).collect();
        Self { dispatch, ready: 0, next: 0, claims: None, direct: Vec::new(), sessions, unsent, now: Instant::now() }
    }

    fn enqueue(&mut self, jobs: u64) {
        self.ready += jobs;
        self.dispatch.ready(std::iter::once(Ready { type_id: TYPE, lowest_rank: self.next, jobs }));
    }

    /// A claim begins; returns whether there is one.
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

    /// The claim in progress comes back, after a millisecond.
    fn end(&mut self) {
        let Some(wants) = self.claims.take() else { return };
        self.now += CLAIM;
        let jobs = self.fetch(wants[0].jobs as u64);
        let (dealt, nobodys) = self.dispatch.with(|state| state.claimed(&wants, jobs, false, &[], self.now));
        assert!(nobodys.is_empty());
        self.dispatch.deliver(dealt);
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
        self.dispatch.deal_reserved(reserved, jobs).wake();
    }

    /// The worker settles what it has held for longest.
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

    /// What lay in the hand for too long is ready again.
    fn put_back(&mut self) {
        let stale = self.dispatch.with(|state| state.stale_hand(std::time::Instant::now() + Duration::from_secs(2))).0;
        if !stale.jobs.is_empty() {
            self.enqueue(stale.jobs.len() as u64);
        }
        self.dispatch.with(|state| state.returned(&stale.returning));
        while self.unsent.try_recv().is_ok() {}
    }
}

/// Workers with a window that two or three engines deal to.
struct Fleet {
    engines: Vec<Engine>,
    turns: Vec<Arc<Turns>>,
    window: u32,
}

fn type_name() -> TaskTypeName {
    TaskTypeName::parse("t").unwrap()
}

impl Fleet {
    fn new(engines: usize, workers: usize, window: u32) -> Self {
        let engines: Vec<Engine> = (0..engines).map(|_| Engine::new(workers)).collect();
        let turns = (0..workers).map(|_| Turns::keeping(vec![0; engines.len()], KEPT)).collect();
        let fleet = Self { engines, turns, window };
        for worker in 0..workers {
            for engine in 0..fleet.engines.len() {
                fleet.subscribe(engine, worker, Load::default());
            }
            fleet.turns[worker].open();
        }
        fleet
    }

    fn subscribe(&self, engine: usize, worker: usize, held: Load) {
        let of = &self.engines[engine];
        let session: Arc<dyn Recipient> = of.sessions[worker].clone();
        let window = Window { jobs: self.window, bytes: BYTES * u64::from(self.window) };
        let turn = (self.turns[worker].of(&type_name()), engine);
        of.dispatch.set_window(&session, TYPE, window, held, Some(turn));
    }

    fn held(&self, worker: usize) -> usize {
        self.engines.iter().map(|engine| engine.sessions[worker].held.lock().len()).sum()
    }

    fn check(&self) {
        for worker in 0..self.turns.len() {
            let held = self.held(worker);
            assert!(held <= self.window as usize, "worker {worker} holds {held} jobs; its window is {}", self.window);
        }
    }

    /// Every engine claims until nobody can. Returns whether anything was dealt.
    fn claim_all(&mut self) -> bool {
        let before: i64 = self.engines.iter().map(|engine| engine.next).sum();
        loop {
            let mut any = false;
            for engine in &mut self.engines {
                if engine.begin() {
                    engine.end();
                    any = true;
                }
            }
            if !any {
                break;
            }
            self.check();
        }
        self.engines.iter().map(|engine| engine.next).sum::<i64>() > before
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
    let (engine, worker) = (0..3_usize, 0..2_usize);
    prop_oneof![
        3 => (engine.clone(), 1..6_u64).prop_map(|(e, n)| Step::Enqueue(e, n)),
        4 => engine.clone().prop_map(Step::Begin),
        4 => engine.clone().prop_map(Step::End),
        1 => engine.clone().prop_map(Step::Fail),
        2 => (engine.clone(), 1..3_u32).prop_map(|(e, n)| Step::BeginDirect(e, n)),
        2 => engine.clone().prop_map(Step::EndDirect),
        6 => (engine.clone(), worker.clone()).prop_map(|(e, w)| Step::Settle(e, w)),
        1 => (engine.clone(), worker.clone(), any::<bool>()).prop_map(|(e, w, s)| Step::Stall(e, w, s)),
        1 => (engine.clone(), worker).prop_map(|(e, w)| Step::Reattach(e, w)),
        1 => engine.prop_map(Step::PutBack),
        1 => Just(Step::Wait),
    ]
}

impl Fleet {
    async fn take(&mut self, step: Step) {
        match step {
            Step::Enqueue(e, jobs) => self.engines[e].enqueue(jobs),
            Step::Begin(e) => drop(self.engines[e].begin()),
            Step::End(e) => self.engines[e].end(),
            Step::Fail(e) => self.engines[e].fail(),
            Step::BeginDirect(e, jobs) => self.engines[e].begin_direct(jobs),
            Step::EndDirect(e) => self.engines[e].end_direct(),
            Step::Settle(e, worker) => drop(self.engines[e].settle(worker)),
            Step::Stall(e, worker, stalled) => self.engines[e].dispatch.stall(worker as u64, stalled),
            Step::Reattach(e, worker) => {
                // It holds the same again when it comes back.
                self.engines[e].dispatch.leave(worker as u64);
                self.check();
                let jobs = self.engines[e].sessions[worker].held.lock().len() as u32;
                self.subscribe(e, worker, Load { jobs, bytes: BYTES * u64::from(jobs) });
            }
            Step::PutBack(e) => self.engines[e].put_back(),
            Step::Wait => tokio::time::sleep(2 * KEPT).await,
        }
        self.check();
    }

    /// From any state, all jobs are worked off once everything answers.
    async fn finish(&mut self) {
        for engine in &mut self.engines {
            (0..2).for_each(|worker| engine.dispatch.stall(worker, false));
            engine.end();
            while !engine.direct.is_empty() {
                engine.end_direct();
            }
        }
        for _ in 0..10_000 {
            self.claim_all();
            let mut settled = false;
            for engine in &mut self.engines {
                settled |= engine.settle(0) | engine.settle(1);
            }
            if !settled {
                if self.engines.iter().all(|engine| engine.ready == 0) {
                    let held = self.engines.iter().map(|e| e.dispatch.state.lock().types[&TYPE].hand.len());
                    if held.sum::<usize>() == 0 {
                        return;
                    }
                }
                // Nothing is held: a sweep, the end of what lay too long, or of a wait, has to bring it on.
                tokio::time::sleep(2 * KEPT).await;
                for engine in &mut self.engines {
                    engine.put_back();
                    let jobs = u64::from(engine.ready > 0);
                    engine.dispatch.ready_here(std::iter::once(Ready { type_id: TYPE, lowest_rank: 0, jobs }));
                }
            }
        }
        let left: Vec<u64> = self.engines.iter().map(|engine| engine.ready).collect();
        panic!("jobs are left that nobody gets: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_window_of_several_engines_is_never_exceeded_and_no_engine_waits_for_ever(
        steps in prop::collection::vec(step(), 1..120),
        window in 1..6_u32,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut fleet = Fleet::new(3, 2, window);
            for step in steps {
                fleet.take(step).await;
            }
            fleet.finish().await;
        });
    }
}
