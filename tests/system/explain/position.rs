//! Tests the reported position of jobs against the order in which they run, after random priorities, fair keys, limit keys,
//! changed priorities, cancels, failed attempts, retries by an operator, and elapsed delays.

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{JobState, NewJob, ReasonKind, ReprioritizeJobsRequest, SettleStatus, TaskTypeSettings};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::explain;
use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Enqueue {
        priority: i32,
        fair_key: Option<u8>,
        limit_key: Option<u8>,
        jobs: usize,
    },
    /// Enqueues a job with a delay, and makes the delay elapse.
    Due {
        priority: i32,
        limit_key: Option<u8>,
    },
    /// Fails the next job, which is retried immediately.
    Fail,
    /// Fails the next job for good, and retries it as an operator.
    Retry,
    Reprioritize {
        job: usize,
        priority: i32,
    },
    Cancel {
        job: usize,
    },
}

/// Limits that apply to each limit key of a task type.
#[derive(Clone, Debug)]
struct Limits {
    key_max_running: u32,
    key_strict_order: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let priority = || -2..3_i32;
    let key = || prop::option::of(0..3_u8);
    prop_oneof![
        8 => (priority(), key(), key(), 1..4_usize)
            .prop_map(|(priority, fair_key, limit_key, jobs)| Step::Enqueue { priority, fair_key, limit_key, jobs }),
        1 => (priority(), key()).prop_map(|(priority, limit_key)| Step::Due { priority, limit_key }),
        2 => Just(Step::Fail),
        1 => Just(Step::Retry),
        2 => (any::<usize>(), priority()).prop_map(|(job, priority)| Step::Reprioritize { job, priority }),
        1 => any::<usize>().prop_map(|job| Step::Cancel { job }),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (0..3_u32, any::<bool>()).prop_map(|(key_max_running, strict)| {
        let key_strict_order = strict && key_max_running == 1;
        Limits { key_max_running, key_strict_order }
    })
}

struct World {
    runtime: Runtime,
    broker: TestBroker,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("runtime");
    let broker = runtime.block_on(TestBroker::start());
    World { runtime, broker }
});
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Maps the ids of unfinished jobs to their limit keys.
type Jobs = BTreeMap<i64, Option<u8>>;

fn job_of(task_type: &str, priority: i32, fair_key: Option<u8>, limit_key: Option<u8>) -> NewJob {
    let mut job = new_job(task_type, "").priority(priority);
    if let Some(key) = fair_key {
        job = job.fair_key(&key.to_string());
    }
    if let Some(key) = limit_key {
        job = job.limit_key(&key.to_string());
    }
    job
}

/// Runs the random steps and returns the unfinished jobs.
async fn play(task_type: &str, steps: &[Step]) -> Jobs {
    let broker = &WORLD.broker;
    let mut jobs = Jobs::new();
    let nth = |jobs: &Jobs, n: usize| jobs.keys().nth(n % jobs.len().max(1)).copied();
    for step in steps {
        match *step {
            Step::Enqueue { priority, fair_key, limit_key, jobs: n } => {
                let job = job_of(task_type, priority, fair_key, limit_key);
                let ids = broker.enqueue_all(vec![job; n]).await;
                jobs.extend(ids.into_iter().map(|id| (id, limit_key)));
            }
            Step::Due { priority, limit_key } => {
                let job = job_of(task_type, priority, None, limit_key).delay(Duration::from_millis(1));
                jobs.insert(broker.enqueue(job).await, limit_key);
            }
            Step::Fail => {
                until_nothing_is_due(&jobs).await;
                for job in broker.pull(task_type).await {
                    assert_eq!(broker.settle(vec![nack(&job, "no").at_once()]).await, [SettleStatus::Ok]);
                }
            }
            Step::Retry => {
                until_nothing_is_due(&jobs).await;
                for job in broker.pull(task_type).await {
                    assert_eq!(broker.settle(vec![nack(&job, "no").no_retry()]).await, [SettleStatus::Ok]);
                    assert_eq!(broker.retry(&[job.id]).await, [job.id]);
                }
            }
            Step::Reprioritize { job, priority } => {
                let Some(id) = nth(&jobs, job) else { continue };
                let request = ReprioritizeJobsRequest { ids: vec![id], priority, ..Default::default() };
                broker.jobs().reprioritize_jobs(request).await.expect("reprioritize");
            }
            Step::Cancel { job } => {
                let Some(id) = nth(&jobs, job) else { continue };
                assert_eq!(broker.cancel(&[id]).await, [id]);
                jobs.remove(&id);
            }
        }
    }
    until_nothing_is_due(&jobs).await;
    jobs
}

/// Waits until each job is ready or waits for a slot of its limit key.
async fn until_nothing_is_due(jobs: &Jobs) {
    eventually("jobs that are ready or wait at their limit key", async || {
        for &id in jobs.keys() {
            let explained = explain(&WORLD.broker, id).await;
            let is_settled = matches!(explained.state(), JobState::Ready | JobState::Waiting);
            if !is_settled || explained.reasons.iter().any(|reason| reason.kind() == ReasonKind::Due) {
                return false;
            }
        }
        true
    })
    .await;
}

async fn check(limits: Limits, steps: Vec<Step>) {
    let broker = &WORLD.broker;
    let task_type = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let Limits { key_max_running, key_strict_order } = limits;
    broker.set(&task_type, TaskTypeSettings { key_max_running, key_strict_order, ..Default::default() }).await;
    let jobs = play(&task_type, &steps).await;

    // All ready jobs have one order. The jobs that wait for a limit key have a separate order for each limit key.
    let mut reported: BTreeMap<Option<u8>, Vec<(i64, i64)>> = BTreeMap::new();
    for (&id, &limit_key) in &jobs {
        let explained = explain(broker, id).await;
        let position = explained.position.expect("a position");
        assert!(!position.has_more);
        let order = limit_key.filter(|_| explained.state() == JobState::Waiting);
        reported.entry(order).or_default().push((position.jobs_before, id));
    }
    let mut ran = Vec::new();
    while ran.len() < jobs.len() {
        let pulled = broker.pull(&task_type).wait(MINUTE).await.remove(0);
        ran.push(pulled.id);
        assert_eq!(broker.settle(vec![ack(&pulled)]).await, [SettleStatus::Ok]);
    }
    for mut reported in reported.into_values() {
        reported.sort_unstable();
        let is_one = |id: &&i64| reported.iter().any(|(_, one)| one == *id);
        let really: Vec<(i64, i64)> = (0..).zip(ran.iter().filter(is_one).copied()).collect();
        assert_eq!(reported, really);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sized(12, 48), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_reported_position_is_the_number_of_earlier_jobs(limits in limits(), steps in prop::collection::vec(step(), 1..10)) {
        WORLD.runtime.block_on(check(limits, steps));
    }
}
