//! What is said of the position of ready jobs, compared with the order in which they really run: after random priorities,
//! fairness keys, changed priorities and cancelled jobs.

use std::sync::{
    LazyLock,
    atomic::{AtomicU32, Ordering},
};

use howdah_proto::v1::ReprioritizeJobsRequest;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::explain;
use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Enqueue { priority: i32, fair_key: Option<u8>, jobs: usize },
    Reprioritize { job: usize, priority: i32 },
    Cancel { job: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let priority = || -2..3_i32;
    prop_oneof![
        6 => (priority(), prop::option::of(0..3_u8), 1..4_usize)
            .prop_map(|(priority, fair_key, jobs)| Step::Enqueue { priority, fair_key, jobs }),
        2 => (any::<usize>(), priority()).prop_map(|(job, priority)| Step::Reprioritize { job, priority }),
        1 => any::<usize>().prop_map(|job| Step::Cancel { job }),
    ]
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

/// The ready jobs after these steps.
async fn play(task_type: &str, steps: &[Step]) -> Vec<i64> {
    let broker = &WORLD.broker;
    let mut ids: Vec<i64> = Vec::new();
    for step in steps {
        match *step {
            Step::Enqueue { priority, fair_key, jobs } => {
                let job = new_job(task_type, "").priority(priority);
                let job = match fair_key {
                    Some(key) => job.fair_key(&key.to_string()),
                    None => job,
                };
                ids.extend(broker.enqueue_all(vec![job; jobs]).await);
            }
            _ if ids.is_empty() => {}
            Step::Reprioritize { job, priority } => {
                let request =
                    ReprioritizeJobsRequest { ids: vec![ids[job % ids.len()]], priority, ..Default::default() };
                broker.jobs().reprioritize_jobs(request).await.expect("reprioritize");
            }
            Step::Cancel { job } => {
                let id = ids.swap_remove(job % ids.len());
                assert_eq!(broker.cancel(&[id]).await, [id]);
            }
        }
    }
    ids
}

async fn check(steps: Vec<Step>) {
    let broker = &WORLD.broker;
    let task_type = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let ids = play(&task_type, &steps).await;
    let mut said = Vec::new();
    for &id in &ids {
        let position = explain(broker, id).await.position.expect("a position");
        assert!(!position.has_more);
        said.push((position.jobs_before, id));
    }
    said.sort_unstable();
    for (n, (before, id)) in said.into_iter().enumerate() {
        let pulled = broker.pull(&task_type).await;
        assert_eq!((before, vec![id]), (n as i64, pulled.iter().map(|job| job.id).collect()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_job_has_as_many_before_it_as_really_run_first(steps in prop::collection::vec(step(), 1..8)) {
        WORLD.runtime.block_on(check(steps));
    }
}
